"""Prints what Tandem itself and the named extras depend on, one requirement a line, read from pyproject.toml.

`build` names what it is built with; `--only` leaves out Tandem's own.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main(extras: list[str]) -> None:
    read = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text(encoding="utf-8"))
    known = {**read["project"]["optional-dependencies"], "build": read["build-system"]["requires"], "--only": []}
    own = [] if "--only" in extras else read["project"]["dependencies"]
    for requirement in [*own, *(requirement for extra in extras for requirement in known[extra])]:
        print(requirement)


if __name__ == "__main__":
    main(sys.argv[1:])
