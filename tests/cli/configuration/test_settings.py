"""Flags over environment over file over defaults, and every mistake said with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.cli.configuration.settings import Configuration, Flags, is_loopback, load, quick_flags
from tandem.model.errors import ConfigurationError
from tandem.model.limits import Limits
from tandem.server.settings import Listener, StoresSettings, TlsSettings


def configured(tmp_path: Path, text: str = "", environ: dict[str, str] | None = None, **flags: object) -> Configuration:
    if text:
        (tmp_path / "tandem.toml").write_text(text)
    return load(Flags(**flags), environ or {}, tmp_path)  # type: ignore[arg-type]


def refused(tmp_path: Path, text: str = "", environ: dict[str, str] | None = None, **flags: object) -> str:
    with pytest.raises(ConfigurationError) as caught:
        configured(tmp_path, text, environ, **flags)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_without_anything_said_the_defaults_hold(tmp_path: Path) -> None:
    found = configured(tmp_path)
    assert found.file is None
    assert found.root_key is None
    assert found.server.listeners == tuple(Listener(host="127.0.0.1", port=port) for port in (5672, 5671, 5300))
    assert found.server.data_dir == tmp_path / "tandem-data"
    assert [namespace.name for namespace in found.server.namespaces] == ["tandem"]
    assert found.server.limits == Limits()
    assert found.server.stores == StoresSettings()
    assert (found.server.dev, found.server.faults, found.server.tls) == (False, False, None)


FILE = """
data = "from-file"
key = "file-key"
[listen]
host = "::1"
ports = [1000]
[stores]
count = 2
audit_retention = "3d"
[limits]
message_bytes_max = 1000000
"""
ENVIRONMENT = {
    "TANDEM_DATA": "from-environment",
    "TANDEM_KEY": "environment-key",
    "TANDEM_HOST": "localhost",
    "TANDEM_PORT": "2000,2001",
    "TANDEM_STORES_COUNT": "3",
    "TANDEM_LIMITS_MESSAGE_BYTES_MAX": "2_000_000",
}


def test_file_wins_over_defaults(tmp_path: Path) -> None:
    server = (found := configured(tmp_path, FILE)).server
    assert found.file == tmp_path / "tandem.toml"
    assert found.root_key == "file-key"
    assert server.data_dir == tmp_path / "from-file"
    assert server.listeners == (Listener(host="::1", port=1000),)
    assert server.stores == StoresSettings(count=2, audit_retention_ms=3 * 86_400_000)
    assert server.limits == Limits(message_bytes_max=1_000_000)


def test_environment_wins_over_file(tmp_path: Path) -> None:
    server = (found := configured(tmp_path, FILE, ENVIRONMENT)).server
    assert found.root_key == "environment-key"
    assert server.data_dir == tmp_path / "from-environment"
    assert server.listeners == (Listener(host="localhost", port=2000), Listener(host="localhost", port=2001))
    assert server.stores.count == 3
    assert server.limits.message_bytes_max == 2_000_000


def test_flags_win_over_everything(tmp_path: Path) -> None:
    found = configured(tmp_path, FILE, ENVIRONMENT, data=Path("flag"), key="flag-key", host="127.0.0.2", port=(3000,), store_count=5)
    assert found.root_key == "flag-key"
    assert found.server.data_dir == tmp_path / "flag"
    assert found.server.listeners == (Listener(host="127.0.0.2", port=3000),)
    assert found.server.stores.count == 5


def test_empty_variable_says_nothing(tmp_path: Path) -> None:
    assert configured(tmp_path, FILE, {"TANDEM_KEY": ""}).root_key == "file-key"


def test_paths_in_a_file_are_relative_to_it(tmp_path: Path) -> None:
    elsewhere = tmp_path / "etc"
    elsewhere.mkdir()
    (elsewhere / "bus.toml").write_text('data = "d"\n[tls]\ncertificate = "c.pem"\nprivate_key = "/abs/k.pem"\n')
    server = configured(tmp_path, config=Path("etc/bus.toml")).server
    assert server.data_dir == elsewhere / "d"
    assert server.tls == TlsSettings(certificate=elsewhere / "c.pem", private_key=Path("/abs/k.pem"), ca=None)


def test_environment_may_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("dev = true")
    assert configured(tmp_path, environ={"TANDEM_CONFIG": "other.toml"}).server.dev


def test_named_file_that_is_missing_is_an_error_but_no_file_is_not(tmp_path: Path) -> None:
    assert refused(tmp_path, config=Path("none.toml")) == "none.toml: cannot be read: No such file or directory"


def test_memory_keeps_no_data_directory(tmp_path: Path) -> None:
    assert configured(tmp_path, memory=True).server.data_dir is None
    assert configured(tmp_path, "memory = true").server.data_dir is None
    assert configured(tmp_path, "memory = true", data=Path("d")).server.data_dir == tmp_path / "d"
    assert refused(tmp_path, data=Path("d"), memory=True) == "--memory: stands beside --data; give one of them"


def test_dev_allows_faults_and_listens_on_loopback_only(tmp_path: Path) -> None:
    server = configured(tmp_path, dev=True).server
    assert server.dev and server.faults
    for host in ("localhost", "127.0.0.1", "::1", "127.9.9.9"):
        assert configured(tmp_path, dev=True, host=host).server.listeners[0].host == host
    assert refused(tmp_path, dev=True, host="0.0.0.0").startswith('--host: found "0.0.0.0"; with dev the key is known to everybody')
    assert refused(tmp_path, 'dev = true\n[listen]\nhost = "bus.example.org"').startswith("tandem.toml:3: listen.host: found")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("port = 5672", "tandem.toml:1: port: there is no such setting here."),
        ("[listen]\nport = 5672", "tandem.toml:2: listen.port: there is no such setting here. Did you mean ports? Allowed is host, ports"),
        ("[listen]\nports = 5672", "tandem.toml:2: listen.ports: found 5672; allowed is a list, each a whole number from 0 to 65535"),
        ("[listen]\nports = [70000]", "tandem.toml:2: listen.ports: found a list; allowed is a list, each a whole number from 0 to 65535"),
        ("[listen]\nports = []", "tandem.toml:2: listen.ports: found a list"),
        ("[listen]\nports = [1, 1]", "tandem.toml:2: listen.ports: a port is named twice"),
        ("listen = 3", "tandem.toml:1: listen: found 3; allowed is a table of settings"),
        ("dev = 'yes'", 'tandem.toml:1: dev: found "yes"; allowed is true or false'),
        ("[stores]\ncount = 0", "tandem.toml:2: stores.count: found 0; allowed is a whole number from 1 to 64"),
        ("[stores]\naudit_retention = 5", "tandem.toml:2: stores.audit_retention: found 5; allowed is a duration from 0s to 3650d"),
        (
            "[limits]\nmessage_byte_max = 5",
            "tandem.toml:2: limits.message_byte_max: there is no such setting here. Did you mean message_bytes_max?",
        ),
        ("[limits]\nmessage_bytes_max = 104857601", "tandem.toml:2: limits.message_bytes_max: found 104857601; allowed is at most"),
        ("[tls]\ncertificate = 'c'", "tandem.toml:2: tls.certificate: needs tls.private_key as well"),
        ("[tls]\nprivate_key = 'c'", "tandem.toml:2: tls.private_key: needs tls.certificate as well"),
    ],
)
def test_mistake_in_the_file_is_said_with_line_and_key(tmp_path: Path, text: str, says: str) -> None:
    assert refused(tmp_path, text).startswith(says)


def test_mistake_in_the_environment_is_said_with_the_variable(tmp_path: Path) -> None:
    said = refused(tmp_path, environ={"TANDEM_PORT": "http"})
    assert said == 'environment TANDEM_PORT: found "http"; allowed is a list, each a whole number from 0 to 65535'
    assert refused(tmp_path, environ={"TANDEM_DEV": "perhaps"}).startswith('environment TANDEM_DEV: found "perhaps"')


def test_mistake_in_a_flag_is_said_with_the_flag(tmp_path: Path) -> None:
    assert refused(tmp_path, store_count=0) == "--store-count: found 0; allowed is a whole number from 1 to 64"
    assert refused(tmp_path, port=(99999,)).startswith("--port: found ")


def test_data_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("")
    assert refused(tmp_path, data=Path("d")) == "--data: d is not a directory"


def test_names_of_namespaces_join_the_names_of_the_certificate(tmp_path: Path) -> None:
    found = configured(tmp_path, '[tls]\nnames = ["a.example"]\n[[namespace]]\nname = "n"\nhosts = ["b.example"]\n')
    assert found.tls_names == ("a.example", "b.example")


def test_second_namespace_without_hosts_gets_one_of_its_own(tmp_path: Path) -> None:
    found = configured(tmp_path, '[[namespace]]\nname = "one"\n[[namespace]]\nname = "two"\n')
    assert [namespace.hosts for namespace in found.server.namespaces] == [(), ("two.localhost",)]


def test_loopback_is_recognised() -> None:
    assert all(is_loopback(host) for host in ("localhost", "LocalHost", "127.0.0.1", "127.1.2.3", "::1", "[::1]"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""))


ARGUMENTS = [
    [],
    ["--port", "1", "--port=2", "--dev"],
    ["--host", "::1", "--data", "a/b", "--config=c.toml", "--key", "k=="],
    ["--memory", "--faults", "--store-count", "3"],
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=" ".join)
def test_flags_read_quickly_are_those_the_command_line_library_reads(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from tandem.cli import application, serve

    seen: list[Flags] = []
    monkeypatch.setattr(serve, "serve_with", seen.append)
    application.app(["serve", *arguments], standalone_mode=False)
    assert seen == [quick_flags(arguments)]


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--prot", "1"], ["--port"], ["--port", "x"], ["--port", "70000"], ["extra"], ["--dev=1"], ["--store-count", "0"]],
)
def test_what_needs_explaining_is_left_to_the_command_line_library(arguments: list[str]) -> None:
    assert quick_flags(arguments) is None
