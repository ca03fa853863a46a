"""`tandem keys` without a broker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tandem.cli.configuration.keyring import endpoint_host
from tandem.server.settings import NamespaceSettings


def tandem(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tandem", *arguments], cwd=directory, capture_output=True, text=True, timeout=60, check=False
    )


def test_without_keys_it_says_what_to_do_and_makes_none(tmp_path: Path) -> None:
    done = tandem(tmp_path, "keys")
    assert done.returncode == 2
    assert "there are no keys yet; start the broker once (tandem serve), or name its directory with --data" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_rules_of_the_configuration_are_shown_with_their_rights(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text('{"tandem": {"": {"RootManageSharedAccessKey": {"primary_key": "p", "secondary_key": "s"}}}}')
    (tmp_path / "tandem.toml").write_text(
        'data = "."\n[[queue]]\nname = "q"\n'
        'authorization_rule = [{ name = "r", rights = ["Send"], primary_key = "a", secondary_key = "b" }]\n'
    )
    shown = json.loads(tandem(tmp_path, "keys", "--json").stdout)
    assert [(item["entity"], item["key_name"], item["rights"], item["primary_key"]) for item in shown] == [
        ("", "RootManageSharedAccessKey", ["Listen", "Manage", "Send"], "p"),
        ("q", "r", ["Send"], "a"),
    ]
    assert shown[1]["connection_string"].endswith("SharedAccessKey=a;EntityPath=q;UseDevelopmentEmulator=true")
    text = tandem(tmp_path, "keys").stdout
    assert "tandem/q  r  (Send)\n  primary key        a\n  secondary key      b\n" in text


def test_host_to_dial_is_the_namespaces_own_or_the_machines() -> None:
    assert endpoint_host(NamespaceSettings(hosts=("bus.example",)), "0.0.0.0") == "bus.example"
    assert endpoint_host(NamespaceSettings(), "127.0.0.1") == "localhost"
    assert endpoint_host(NamespaceSettings(), "10.0.0.5") == "10.0.0.5"
    assert endpoint_host(NamespaceSettings(), "0.0.0.0") not in ("", "0.0.0.0")
