"""The site has every page, and no page that is not there."""

from __future__ import annotations

from typing import Any

import pytest

from tests.docs.pages import ROOT


def listed(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for one in (nav if isinstance(nav, list) else nav.values()) for page in listed(one)]


def test_every_page_is_in_the_navigation_and_every_entry_is_a_page() -> None:
    yaml = pytest.importorskip("yaml", reason="MISSING: PyYAML")
    named = listed(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert set(named) - {"index.md"} == pages
    assert len(named) == len(set(named))
