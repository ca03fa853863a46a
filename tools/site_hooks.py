"""What the documentation site does to the Markdown that is there: the README is its first page, and links that leave docs/ become text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    here = (ROOT / "docs" / page.file.src_uri).parent

    def link(found: re.Match[str]) -> str:
        words, target = found[1], found[2]
        if "://" in target or target.startswith("#"):
            return found[0]
        file = target.partition("#")[0]
        beside = (ROOT / file).resolve() if page.file.src_uri == "index.md" else (here / file).resolve()
        if page.file.src_uri == "index.md" and not beside.exists():
            return found[0]  # the README's links into docs/, which begin there by now
        return found[0] if beside.is_relative_to(ROOT / "docs") else f"{words} (`{beside.relative_to(ROOT)}`)"

    return _LINK.sub(link, markdown)
