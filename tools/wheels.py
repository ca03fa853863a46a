"""Builds what is published into dist/: a pure wheel for everywhere, and the compiled one for Linux with its manylinux tag."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"


def build(compile_hot_modules: bool, into: Path) -> Path:
    """In a copy of what belongs to the package, so that nothing of one build is left for the other."""
    copy = ROOT / "build" / ("wheel-compiled" if compile_hot_modules else "wheel-pure")
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, copy / name)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info"))
    program = f"import sys; from setuptools import build_meta; sys.stderr.write(build_meta.build_wheel({str(into)!r}))"
    environment = {**os.environ, "TANDEM_COMPILE": "1" if compile_hot_modules else "0"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=copy, env=environment, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return into / done.stderr.splitlines()[-1]


def repair(wheel: Path, into: Path) -> Path:
    """With the tag of the oldest Linux it runs on."""
    command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(into), str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return next(into.glob("*manylinux*.whl"))


def main() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    wheels = [build(False, DIST)]
    if "--pure" not in sys.argv[1:]:
        aside = ROOT / "build" / "wheel-unrepaired"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        wheels.append(repair(build(True, aside), DIST))
    for wheel in wheels:
        print(f"{wheel.relative_to(ROOT)}  {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
