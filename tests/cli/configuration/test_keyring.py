"""Keys: made once, complete for every rule, never lost and never shown to others."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tandem.cli.configuration import keyring
from tandem.model.entity import AuthorizationRule, QueueDescription, Right, TopicDescription
from tandem.model.errors import ConfigurationError
from tandem.server.settings import NamespaceSettings


def rule(name: str, primary: str = "", secondary: str = "") -> AuthorizationRule:
    return AuthorizationRule(key_name=name, primary_key=primary, secondary_key=secondary, rights=frozenset({Right.SEND}))


def test_same_key_is_given_again_after_saving(tmp_path: Path) -> None:
    file = tmp_path / "new" / "keys.json"
    ring = keyring.KeyRing(file)
    made = ring.key("n", "", "r", "primary_key")
    assert len(base64.b64decode(made)) == 32
    assert ring.key("n", "", "r", "secondary_key") != made
    ring.save()
    assert keyring.KeyRing(file).key("n", "", "r", "primary_key") == made
    assert [path.name for path in file.parent.iterdir()] == ["keys.json"]


def test_nothing_new_means_nothing_written(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    keyring.KeyRing(file).save()
    assert not file.exists()


def test_file_is_for_its_owner_only_even_if_it_was_not(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    ring = keyring.KeyRing(file)
    ring.key("n", "", "r", "primary_key")
    ring.save()
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    keyring.KeyRing(file)
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"n": 1}', '{"n": {"": {"r": {"primary_key": 5}}}}', '{"n": {"": {"r": {"primary_key": ""}}}}']
)
def test_damaged_file_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys.json"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=r"keys\.json: is damaged .*restore it from a backup, or delete it"):
        keyring.KeyRing(file)
    assert file.read_text() == text


def test_every_rule_gets_both_keys_and_given_ones_are_kept() -> None:
    namespace = NamespaceSettings(
        name="n",
        queues=(QueueDescription(name="q", authorization_rules=(rule("r", primary="mine"),)),),
        topics=(TopicDescription(name="t", authorization_rules=(rule("r"),)),),
        authorization_rules=(rule("r"),),
    )
    (filled,) = keyring.fill((namespace,), keyring.KeyRing(None), None, dev=False)
    root, own = filled.authorization_rules
    assert (root.key_name, root.rights) == (keyring.ROOT_RULE, frozenset(Right))
    (on_queue,), (on_topic,) = filled.queues[0].authorization_rules, filled.topics[0].authorization_rules
    assert on_queue.primary_key == "mine"
    made = [root.primary_key, root.secondary_key, own.primary_key, on_queue.secondary_key, on_topic.primary_key, on_topic.secondary_key]
    assert all(made) and len(set(made)) == len(made)


def test_root_key_is_the_one_given_else_the_well_known_one_in_dev_else_the_configured_one() -> None:
    namespaces = (NamespaceSettings(authorization_rules=(rule(keyring.ROOT_RULE, primary="configured"),)),)

    def root(given: str | None, dev: bool) -> AuthorizationRule:
        return keyring.fill(namespaces, keyring.KeyRing(None), given, dev)[0].authorization_rules[0]

    assert root("given", True).primary_key == "given"
    assert root(None, True).primary_key == "SAS_KEY_VALUE"
    assert root(None, False).primary_key == "configured"
    assert root(None, False).rights == frozenset(Right)


def test_keys_by_hand_are_not_written_down(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    ring = keyring.KeyRing(file)
    keyring.fill((NamespaceSettings(name="n"),), ring, "by-hand", dev=False)
    ring.save()
    secondary = ring.key("n", "", keyring.ROOT_RULE, "secondary_key")
    assert json.loads(file.read_text()) == {"n": {"": {keyring.ROOT_RULE: {"secondary_key": secondary}}}}


def test_connection_strings_read_as_the_sdks_expect() -> None:
    given = rule("r", primary="k=")
    assert (
        keyring.connection_string("h", 1, given) == "Endpoint=sb://h:1;SharedAccessKeyName=r;SharedAccessKey=k=;UseDevelopmentEmulator=true"
    )
    assert (
        keyring.connection_string("h", 1, given, "q", tls=True) == "Endpoint=sb://h/;SharedAccessKeyName=r;SharedAccessKey=k=;EntityPath=q"
    )
    assert keyring.connection_string("::1", 1, given).startswith("Endpoint=sb://[::1]:1;")
