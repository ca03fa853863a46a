"""Names that the guide tells users to import stay where they are, whatever room the code lives in."""

from __future__ import annotations

import importlib

import pytest

DOCUMENTED = {
    "tandem.spark": ["register"],
    "tandem.spark.availability": ["availability"],
    "tandem.spark.bill": ["bill"],
    "tandem.spark.cost": ["cost"],
    "tandem.spark.reconcile": ["reconcile"],
    "tandem.spark.session": ["open_session"],
    "tandem.spark.syphon": ["OptionError", "SyphonSettings", "run"],
}


@pytest.mark.parametrize("module", DOCUMENTED)
def test_a_documented_import_works(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in DOCUMENTED[module] if not callable(getattr(found, name, None))] == []
