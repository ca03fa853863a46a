"""Prints what Tandem itself and the named extras depend on, one requirement a line, read from pyproject.toml."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main(extras: list[str]) -> None:
    project = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for requirement in project["dependencies"]:
        print(requirement)
    for extra in extras:
        for requirement in project["optional-dependencies"][extra]:
            print(requirement)


if __name__ == "__main__":
    main(sys.argv[1:])
