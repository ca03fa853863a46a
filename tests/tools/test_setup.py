"""What is compiled: what is hot and exists, and nothing that is not part of the product."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOT = re.findall(r'^    "([a-z_0-9/]+\.py)",$', (ROOT / "setup.py").read_text(encoding="utf-8").partition("SIMULATOR_MODULES")[0], re.M)


def test_a_hot_module_that_does_not_exist_ends_the_build(tmp_path: Path) -> None:
    shutil.copy(ROOT / "setup.py", tmp_path)
    for name in HOT[1:]:
        file = tmp_path / "src" / "tandem" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    environ = os.environ | {"TANDEM_COMPILE": "0"}
    done = subprocess.run([sys.executable, "setup.py", "--name"], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"setup.py lists hot modules that do not exist: src/tandem/{HOT[0]}"


def test_only_rooms_that_a_broker_is_made_of_are_compiled() -> None:
    assert len(HOT) > 50
    assert {name.split("/")[0] for name in HOT} <= {"model", "amqp", "broker", "stores", "server", "gateway", "relay"}
