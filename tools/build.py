"""Builds Tandem's wheel into build/wheel with the tools that are installed, saying as it goes what pip would keep to itself."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WHEELS = ROOT / "build" / "wheel"


def main() -> None:
    from setuptools import build_meta

    os.chdir(ROOT)
    shutil.rmtree(WHEELS, ignore_errors=True)
    WHEELS.mkdir(parents=True)
    print(WHEELS / build_meta.build_wheel(str(WHEELS)))


if __name__ == "__main__":
    sys.exit(main())
