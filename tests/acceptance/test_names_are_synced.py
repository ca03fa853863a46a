"""A name that was not synced through its directory is gone after a power cut: a broker leaves none out at its first start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

WATCHED = r"""
import json, os, sys
report = open(sys.argv.pop(1), "w", buffering=1)
def note(*event):
    report.write(json.dumps(event) + "\n")
def created(path):
    note("name", os.path.abspath(os.fsdecode(path)))
def wrapped(name, told):
    inner = getattr(os, name)
    def call(*arguments, **options):
        result = inner(*arguments, **options)
        told(*arguments)
        return result
    setattr(os, name, call)
def on_open(path, flags=0, *rest):
    if flags & os.O_CREAT:
        created(path)
def on_fsync(descriptor):
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    if os.path.isdir(path):
        note("sync", path)
wrapped("mkdir", lambda path, *rest: created(path))
wrapped("open", on_open)
wrapped("rename", lambda source, target: created(target))
wrapped("replace", lambda source, target: created(target))
wrapped("fsync", on_fsync)
import runpy
runpy.run_module("tandem", run_name="__main__")
"""
MEANS_NOTHING = {"lock", "broker.lock", "events.jsonl", "metadata.sqlite-wal", "metadata.sqlite-shm"}
"""Made anew when they are missing; SQLite looks after its own."""


def test_every_name_of_a_first_start_is_durable_before_a_client_can_connect(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text('[[queue]]\nname = "orders"\n')
    arguments = ["serve", "--port", "0", "--dev", "--data", "deep/data", "--config", "tandem.toml", "--store-count", "2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    broker = subprocess.Popen(
        [sys.executable, "-c", WATCHED, "events", *arguments], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert broker.stdout is not None
    while not broker.stdout.readline().startswith("ready"):
        assert broker.poll() is None
    present = [path for path in (tmp_path / "deep").rglob("*") if path.name not in MEANS_NOTHING]
    broker.send_signal(signal.SIGTERM)
    broker.communicate(timeout=30)
    events: list[tuple[str, str]] = [tuple(json.loads(line)) for line in (tmp_path / "events").read_text().splitlines()]
    assert len(present) > 10
    for path in [tmp_path / "deep", *present]:
        made = [number for number, event in enumerate(events) if event == ("name", str(path))]
        assert made, f"{path} was made without being seen"
        assert ("sync", str(path.parent)) in events[made[-1] :], f"the name of {path} is not synced"
