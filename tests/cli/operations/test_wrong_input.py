"""What is given wrongly is a line with what is wrong, and exit code 2: never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.broker_process import BrokerProcess
from tests.cli.operations.conftest import Tandem, command_line


@pytest.mark.parametrize(
    "command",
    [
        ("store", "check", "{}"),
        ("store", "dump", "{}"),
        ("store", "repair", "{}"),
        ("store", "recover-metadata", "{}"),
        ("store", "backup", "{}", "{}-copy"),
        ("store", "restore", "{}", "{}-copy"),
        ("upgrade", "--check", "{}"),
        ("issuer", "client", "list", "--data", "{}"),
        ("issuer", "client", "add", "shop", "--data", "{}"),
        ("issuer", "rotate", "--data", "{}"),
        ("cost", "--messages", "1", "--prices", "{}"),
    ],
    ids=lambda command: " ".join(command[:3]).replace("{}", "").strip(),
)
def test_a_file_that_is_not_what_it_should_be_is_named(tmp_path: Path, command: tuple[str, ...]) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"\x00\xff\xfe\x80")
    done = command_line(*(part.format(file) for part in command))
    assert done.returncode == 2, done
    assert str(file) in done.stderr and len(done.stderr.splitlines()) == 1


def test_lines_that_are_no_text_are_named(tandem: Tandem, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"\x00\xff\xfe\x80")
    tandem("queue", "create", "q")
    assert f"{file} is not UTF-8 text" in tandem("send", "q", "--lines", str(file), expect=2).stderr


@pytest.mark.slow  # azure-servicebus tries again
def test_an_entity_that_is_not_there_is_said_not_to_be(tandem: Tandem) -> None:
    assert "'tandem:nobody' could not be found" in tandem("peek", "nobody", expect=2).stderr


@pytest.mark.slow
def test_a_wrong_key_is_said_to_be_wrong(broker: BrokerProcess) -> None:
    wrong = broker.connection_string.replace("SAS_KEY_VALUE", "d3Jvbmc=")
    done = command_line("peek", "q", "-c", wrong)
    assert (done.returncode, "the token was signed with another key" in done.stderr) == (2, True), done


def test_a_namespace_that_is_spoken_to_in_plain_is_imported_without_a_certificate(broker: BrokerProcess) -> None:
    done = command_line("import", "--from", broker.connection_string, "--to", "-")
    assert (done.returncode, done.stdout[:20]) == (0, "# Written by tandem "), done
