"""Whether this machine has the Java that Spark needs; standard library only, so that it can be asked before anything is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

JAVA_MIN: Final = 17
HOW_TO_INSTALL: Final = "on Debian: apt-get install default-jre-headless"


def missing_java() -> str:
    """Why Spark would not start, in one line; empty if it would."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is None:
        return f"there is no Java, and Spark needs Java {JAVA_MIN} or newer ({HOW_TO_INSTALL})"
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        where = "JAVA_HOME" if home else "PATH"
        return f"the Java that {where} names does not run ({error}); Spark needs Java {JAVA_MIN} or newer ({HOW_TO_INSTALL})"
    version = java_version(said)
    if version < JAVA_MIN:
        found = f"Java {version}" if version else "a Java of unknown version"
        return f"{program} is {found}, and Spark needs Java {JAVA_MIN} or newer ({HOW_TO_INSTALL})"
    return ""


def java_version(said: str) -> int:
    """The feature release in what `java -version` says: 21 for "21.0.2", 8 for "1.8.0_402", 0 if it says none."""
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else 0
