"""Brings the console's libraries from the npm registry into src/tandem/console/vendor, minified as their authors publish them.

    python tools/vendor_console.py

They are committed, with their licences: neither users nor the build need npm. THIRD-PARTY.md names them.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "src" / "tandem" / "console" / "vendor"
FILES = {
    "preact@11.2.0": {"dist/preact.mjs": "preact.js", "hooks/dist/hooks.mjs": "preact-hooks.js", "LICENSE": "LICENSE-preact.txt"},
    "htm@3.1.1": {"dist/htm.mjs": "htm.js", "LICENSE": "LICENSE-htm.txt"},
    "uplot@1.6.32": {"dist/uPlot.iife.min.js": "uplot.js", "dist/uPlot.min.css": "uplot.css", "LICENSE": "LICENSE-uplot.txt"},
}


def packed(package: str) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        name = subprocess.run(
            ["npm", "pack", "--silent", package], cwd=directory, capture_output=True, text=True, check=True
        ).stdout.strip()
        return (Path(directory) / name).read_bytes()


def main() -> None:
    TARGET.mkdir(exist_ok=True)
    for package, files in FILES.items():
        with tarfile.open(fileobj=io.BytesIO(packed(package))) as archive:
            for source, target in files.items():
                member = archive.extractfile(f"package/{source}")
                assert member is not None
                text = member.read().decode()
                # Browsers know no bare names without an import map, and that would be an inline script.
                text = text.replace('from"preact"', 'from"./preact.js"')
                lines = [line for line in text.splitlines() if not line.startswith("//# sourceMappingURL")]
                (TARGET / target).write_text("\n".join(lines) + "\n")
        print(package)


if __name__ == "__main__":
    main()
