"""The programs of `tests/java`: built once, however many processes test, and run with what they print read back."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.broker_process import BrokerProcess

JAVA = Path(__file__).parents[1] / "java"
TARGET = JAVA / "target"
TOOLS = ("java", "javac", "keytool", "mvn")
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None]
needs_java = [
    pytest.mark.java,
    pytest.mark.timeout(600),  # the first time, Maven fetches the clients
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"MISSING: {', '.join(MISSING)} for the Java clients (on Debian: apt-get install maven openjdk-17-jdk-headless)",
    ),
]
_UNREACHABLE = ("Could not transfer", "Could not resolve", "could not be resolved", "in offline mode")


def _fingerprint() -> str:
    files = [JAVA / "pom.xml", *sorted((JAVA / "src").rglob("*.java"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _maven(*flags: str) -> subprocess.CompletedProcess[str]:
    command = ["mvn", "-q", "-B", *flags, "process-classes"]
    return subprocess.run(command, cwd=JAVA, capture_output=True, text=True, timeout=540, check=False)


def build() -> str:
    """Compile them unless that was done; returns the class path. Only the first time needs a network."""
    TARGET.mkdir(exist_ok=True)
    with (TARGET / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = TARGET / ".built"
        wanted = _fingerprint()
        if not stamp.exists() or stamp.read_text() != wanted:
            done = _maven("-o")
            if done.returncode:
                done = _maven()
            if done.returncode and any(words in done.stdout for words in _UNREACHABLE):
                pytest.skip("MISSING: the packages of tests/java could not be fetched by Maven")
            assert done.returncode == 0, done.stdout
            stamp.write_text(wanted)
    return f"{TARGET / 'classes'}{os.pathsep}{TARGET / 'dependency'}/*"


def trust_store(broker: BrokerProcess) -> Path:
    """As the guide makes it, from the file that the broker prints."""
    store = broker.directory / "trust.p12"
    if store.exists():
        return store
    command = ["keytool", "-importcert", "-noprompt", "-alias", "tandem", "-file", broker.line("CA file:")]
    subprocess.run([*command, "-keystore", str(store), "-storepass", "changeit"], capture_output=True, timeout=60, check=True)
    return store


def run(broker: BrokerProcess, *program: str, environ: dict[str, str] | None = None) -> list[str]:
    """A class or a source file with its arguments, in a JVM that trusts the broker: the lines it prints."""
    classes = build()
    trust = [f"-Djavax.net.ssl.trustStore={trust_store(broker)}", "-Djavax.net.ssl.trustStorePassword=changeit"]
    command = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *trust, "-cp", classes, *program]
    done = subprocess.run(
        command, cwd=broker.directory, env=os.environ | (environ or {}), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def tell(broker: BrokerProcess, program: str, *arguments: str) -> dict[str, Any]:
    """What each story of a program saw."""
    return {line["story"]: line for line in map(json.loads, run(broker, f"stories.{program}", *arguments))}


def run_page(broker: BrokerProcess, page: str, name: str, environ: dict[str, str]) -> list[str]:
    """The Java program of a page of the guide, literally."""
    text = (JAVA.parents[1] / "docs" / "guide" / page).read_text()
    [program] = re.findall(r"```java\n(.*?)```", text, re.DOTALL)
    file = broker.directory / f"{name}.java"
    file.write_text(program)
    return run(broker, str(file), environ=environ)


def seen(told: dict[str, Any], story: str) -> Any:
    line = told[story]
    assert "error" not in line, line["error"]
    return line["seen"]
