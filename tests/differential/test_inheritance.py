"""What runs as Python may extend what is compiled only where that says so; otherwise its first object is a TypeError inside the broker."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from types import ModuleType

import pytest

import tandem
from tests.conftest import INSTALLED

pytestmark = [pytest.mark.compiled_too, pytest.mark.skipif(not INSTALLED, reason="of the compiled package")]


def modules() -> list[ModuleType]:
    for found in pkgutil.walk_packages(tandem.__path__, "tandem."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    return [module for name, module in list(sys.modules.items()) if name.startswith("tandem.")]


def is_compiled(one: type) -> bool:
    return str(getattr(sys.modules[one.__module__], "__file__", "")).endswith(".so")


def extending() -> list[type]:
    """Classes of modules that are not compiled, with one among their bases that is."""
    classes = {one for module in modules() for one in vars(module).values() if inspect.isclass(one) and one.__module__ == module.__name__}
    ours = [one for one in classes if not is_compiled(one)]
    return [one for one in ours if any(base.__module__.startswith("tandem.") and is_compiled(base) for base in one.__mro__[1:])]


def test_every_class_that_extends_a_compiled_one_has_objects() -> None:
    found = extending()
    assert len(found) > 20, "hardly any was found, so this proves nothing"
    broken = []
    for one in found:
        try:
            one.__new__(one)
        except TypeError as error:
            if "interpreted classes cannot inherit from compiled" in str(error):
                broken.append(f"{one.__module__}.{one.__qualname__}")
    assert not broken
