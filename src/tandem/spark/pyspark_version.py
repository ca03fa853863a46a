"""Whether PySpark is installed, with pyarrow, and has what the sources and sinks are made of."""

from __future__ import annotations

import importlib.util
from typing import Final

from tandem.model.errors import ConfigurationError

PYSPARK_MIN: Final = (4, 2)
"""The first one that says where a stream stands (`latestOffset(start, limit)`), and takes all batches of what is available now."""
_INSTALL: Final = "pip install 'tandem-bus[spark]'"


def missing_pyspark() -> str:
    """Why nothing of ours would run on it, in one line; empty if it would."""
    for module, name in (("pyspark", "PySpark"), ("pyarrow", "pyarrow")):
        if importlib.util.find_spec(module) is None:
            return f"{name} is not installed: {_INSTALL}, and a Java runtime 17 or newer"
    import pyspark

    found = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if found < PYSPARK_MIN:
        wanted = ".".join(str(part) for part in PYSPARK_MIN)
        return f"PySpark {wanted} or newer is needed, and this is {pyspark.__version__}: {_INSTALL}"
    return ""


def need_pyspark() -> None:
    """Called before anything of PySpark is imported."""
    missing = missing_pyspark()
    if missing:
        raise ConfigurationError(missing)
