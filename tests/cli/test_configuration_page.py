"""The reference page of the settings is the one the settings would write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tandem.cli.configuration.settings import ALL

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "configuration.md"


def test_page_is_up_to_date() -> None:
    made = subprocess.check_output([sys.executable, str(ROOT / "tools" / "configuration_page.py"), "--print"], text=True, cwd=ROOT)
    assert PAGE.read_text(encoding="utf-8") == made, "make docs writes it again"


def test_page_names_every_setting_with_its_variable() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [setting.path for setting in ALL if f"| `{setting.key}` |" not in text or f"`{setting.environment}`" not in text] == []
