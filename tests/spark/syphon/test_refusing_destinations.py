from __future__ import annotations

from pathlib import Path
from typing import Any

from tandem.spark.syphon.refusing_destinations import RefusingDestinations


def row(path: str, moved: int = 0, trouble: str = "") -> dict[str, Any]:
    return {"path": path, "moved": moved, "trouble": trouble, "reason": f"{path}: refused"}


def test_a_destination_refuses_from_the_first_batch_that_says_so_until_it_takes_something(tmp_path: Path) -> None:
    refusing = RefusingDestinations(tmp_path / "refusing.json")
    assert refusing.read() == {}
    assert refusing.learn([row("Orders", trouble="destination"), row("news", 3), row("away", trouble="away")], 1_000) == {"orders": 1_000}
    assert refusing.learn([row("orders", trouble="destination")], 2_000) == {"orders": 1_000}
    assert RefusingDestinations(tmp_path / "refusing.json").read() == {"orders": 1_000}
    assert refusing.learn([row("news", 1)], 3_000) == {"orders": 1_000}
    assert refusing.learn([row("orders", 5)], 4_000) == {}
    assert refusing.learn([row("orders", 1, trouble="destination")], 5_000) == {"orders": 5_000}


def test_without_a_place_nothing_is_remembered() -> None:
    assert RefusingDestinations("").learn([row("q", trouble="destination")], 7) == {"q": 7}
    assert RefusingDestinations("").read() == {}
