"""Entities from tandem.toml and from the emulator's Config.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandem.cli.configuration.settings import Flags, load
from tandem.model.entity import (
    MAX_DURATION_MS,
    AuthorizationRule,
    CorrelationFilter,
    EntityStatus,
    QueueDescription,
    Right,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)
from tandem.model.errors import ConfigurationError
from tandem.server.settings import NamespaceSettings


def from_toml(tmp_path: Path, text: str) -> tuple[NamespaceSettings, ...]:
    (tmp_path / "tandem.toml").write_text(text)
    return load(Flags(), {}, tmp_path).server.namespaces


def from_json(tmp_path: Path, value: object) -> tuple[NamespaceSettings, ...]:
    file = tmp_path / "Config.json"
    file.write_text(value if isinstance(value, str) else json.dumps(value, indent=2))
    return load(Flags(config=file), {}, tmp_path).server.namespaces


def refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        from_toml(tmp_path, text)
    return str(caught.value).replace(f"{tmp_path}/", "")


WHOLE = """
[[namespace]]
name = "shop"
hosts = ["shop.example"]

[[namespace.authorization_rule]]
name = "operator"
rights = ["Manage"]
primary_key = "p"
secondary_key = "s"

[[namespace.queue]]
name = "orders/eu"
lock_duration = "30s"
max_size_megabytes = 2048
requires_duplicate_detection = true
requires_session = true
default_message_time_to_live = "P1D"
dead_lettering_on_message_expiration = true
duplicate_detection_history = "PT20S"
max_delivery_count = 3
status = "SendDisabled"
auto_delete_on_idle = "5m"
enable_partitioning = true
forward_dead_lettered_messages_to = "dead"
user_metadata = "m"
max_message_bytes = 1048576

[[namespace.queue.authorization_rule]]
name = "sender"
rights = ["send", "Listen"]

[[namespace.queue]]
name = "dead"

[[namespace.topic]]
name = "events"
requires_duplicate_detection = true

[[namespace.topic.subscription]]
name = "all"

[[namespace.topic.subscription]]
name = "some"
max_delivery_count = 7

[[namespace.topic.subscription.rule]]
name = "big"
sql = "amount > @limit"
sql_parameters = { "@limit" = 100 }
action = "SET priority = 'high'"

[[namespace.topic.subscription.rule]]
name = "red"
correlation = { label = "red", properties = { size = 3, sold = true } }

[[namespace.topic.subscription.rule]]
name = "rest"
"""


def test_whole_namespace_is_read(tmp_path: Path) -> None:
    (shop,) = from_toml(tmp_path, WHOLE)
    sender = AuthorizationRule(key_name="sender", primary_key="", secondary_key="", rights=frozenset({Right.SEND, Right.LISTEN}))
    assert shop == NamespaceSettings(
        name="shop",
        hosts=("shop.example",),
        queues=(
            QueueDescription(
                name="orders/eu",
                lock_duration_ms=30_000,
                max_size_megabytes=2048,
                requires_duplicate_detection=True,
                requires_session=True,
                default_message_time_to_live_ms=86_400_000,
                dead_lettering_on_message_expiration=True,
                duplicate_detection_history_ms=20_000,
                max_delivery_count=3,
                status=EntityStatus.SEND_DISABLED,
                auto_delete_on_idle_ms=300_000,
                enable_partitioning=True,
                forward_dead_lettered_messages_to="dead",
                user_metadata="m",
                max_message_bytes=1_048_576,
                authorization_rules=(sender,),
            ),
            QueueDescription(name="dead"),
        ),
        topics=(TopicDescription(name="events", requires_duplicate_detection=True),),
        subscriptions=(
            SubscriptionDescription(topic="events", name="all"),
            SubscriptionDescription(
                topic="events",
                name="some",
                max_delivery_count=7,
                rules=(
                    RuleDescription(
                        name="big",
                        filter=SqlFilter(expression="amount > @limit", parameters=(("@limit", 100),)),
                        action=SqlAction(expression="SET priority = 'high'"),
                    ),
                    RuleDescription(name="red", filter=CorrelationFilter(label="red", properties=(("size", 3), ("sold", True)))),
                    RuleDescription(name="rest", filter=TrueFilter()),
                ),
            ),
        ),
        authorization_rules=(AuthorizationRule(key_name="operator", primary_key="p", secondary_key="s", rights=frozenset(Right)),),
    )


def test_queues_at_the_top_belong_to_the_one_default_namespace(tmp_path: Path) -> None:
    (only,) = from_toml(tmp_path, '[[queue]]\nname = "a"\n[[topic]]\nname = "b"\n')
    assert only == NamespaceSettings(name="tandem", queues=(QueueDescription(name="a"),), topics=(TopicDescription(name="b"),))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[queue]]\nlock_duration = "30s"', "tandem.toml:1: queue[0]: name is missing"),
        ('[[queue]]\nname = "a b"', 'tandem.toml:2: queue[0].name: found "a b"; allowed is a name of letters, digits'),
        ('[[queue]]\nname = "../../etc"', "tandem.toml:1: queue[0]: queue name '../../etc' has the segment '..'"),
        (
            '[[queue]]\nname = "a"\nlock_duration = "PT10M"',
            'tandem.toml:3: queue[0].lock_duration: found "PT10M"; allowed is a duration from 5s to 5m',
        ),
        ('[[queue]]\nname = "a"\n\n[[queue]]\nname = "A"', "tandem.toml:5: queue[1].name: the name 'A' is used twice"),
        ('[[queue]]\nname = "a"\n[[topic]]\nname = "a"', "tandem.toml:4: topic[0].name: the name 'a' is used twice"),
        ('[[queue]]\nname = "a"\nmax_message_bytes = 2000', "tandem.toml:1: queue[0]: MaxMessageSizeInKilobytes is"),
        (
            '[[queue]]\nname = "a"\nrequires_session = true\nforward_to = "b"',
            "tandem.toml:1: queue[0]: RequiresSession and ForwardTo exclude",
        ),
        ('[[topic]]\nname = "t"\nlock_duration = "30s"', "tandem.toml:3: topic[0].lock_duration: there is no such setting here."),
        (
            '[[topic]]\nname = "t"\n[[topic.subscription]]\nname = "a/b"',
            "tandem.toml:3: topic[0].subscription[0]: subscription name 'a/b' contains '/'",
        ),
        (
            '[[namespace]]\nname = "a.b"',
            "tandem.toml:2: namespace[0].name: found \"a.b\"; allowed is a name of letters, digits, '-' and '_'",
        ),
        (
            '[[namespace]]\nname = "a"\n[[queue]]\nname = "q"',
            "tandem.toml:3: queue: stands beside [[namespace]]; write it as [[namespace.queue]]",
        ),
        ('[[namespace]]\nname = "a"\n[[namespace]]\nname = "A"', "tandem.toml:4: namespace[1].name: there are two namespaces named 'A'"),
        (
            '[[namespace]]\nname = "a"\nhosts = ["x"]\n[[namespace]]\nname = "b"\nhosts = ["X"]',
            "tandem.toml:6: namespace[1].hosts: the host 'X' already leads to another namespace",
        ),
        (
            '[[queue]]\nname = "a"\nauthorization_rule = [{ name = "r", rights = ["Read"] }]',
            "tandem.toml:3: queue[0].authorization_rule[0].rights",
        ),
    ],
)
def test_mistake_about_an_entity_is_said_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    assert refused(tmp_path, text).startswith(says)


SUBSCRIPTION = '[[topic]]\nname = "t"\n[[topic.subscription]]\nname = "s"\n[[topic.subscription.rule]]\nname = "r"\n'


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ('sql = "a >"', "tandem.toml:3: topic[0].subscription[0]: "),
        (
            'sql = "1=1"\ncorrelation = { label = "x" }',
            "tandem.toml:8: topic[0].subscription[0].rule[0].correlation: a rule has either sql or",
        ),
        ("correlation = {}", "tandem.toml:3: topic[0].subscription[0]: the correlation filter compares nothing"),
        (
            "correlation = { properties = { a = [1] } }",
            "tandem.toml:7: topic[0].subscription[0].rule[0].correlation.properties.a: found a list",
        ),
        (
            'correlation = { lable = "x" }',
            "tandem.toml:7: topic[0].subscription[0].rule[0].correlation.lable: there is no such setting here. Did you mean label?",
        ),
    ],
)
def test_mistake_in_a_rule_is_said_with_its_place(tmp_path: Path, rule: str, says: str) -> None:
    assert refused(tmp_path, SUBSCRIPTION + rule).startswith(says)


EMULATOR = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [
                    {
                        "Name": "jobs.in",
                        "Properties": {
                            "DeadLetteringOnMessageExpiration": True,
                            "DefaultMessageTimeToLive": "PT1H",
                            "DuplicateDetectionHistoryTimeWindow": "PT20S",
                            "ForwardDeadLetteredMessagesTo": "",
                            "ForwardTo": "",
                            "LockDuration": "PT1M",
                            "MaxDeliveryCount": 3,
                            "RequiresDuplicateDetection": False,
                            "RequiresSession": False,
                            "MaxMessageSizeInKilobytes": 2048,
                        },
                    },
                    {"Name": "bare"},
                ],
                "Topics": [
                    {
                        "Name": "news",
                        "Properties": {"DefaultMessageTimeToLive": "PT1H", "RequiresDuplicateDetection": False},
                        "Subscriptions": [
                            {
                                "Name": "by-header",
                                "Properties": {"LockDuration": "PT1M", "MaxDeliveryCount": 3, "RequiresSession": False, "ForwardTo": ""},
                                "Rules": [
                                    {
                                        "Name": "header",
                                        "Properties": {
                                            "FilterType": "Correlation",
                                            "CorrelationFilter": {"ContentType": "text/plain", "Label": "x", "Properties": {"p": "v"}},
                                        },
                                    }
                                ],
                            },
                            {
                                "Name": "by-sql",
                                "Rules": [
                                    {
                                        "Name": "sql",
                                        "Properties": {
                                            "FilterType": "Sql",
                                            "SqlFilter": {"SqlExpression": "sys.To = 'me' AND colour = 'red'"},
                                            "Action": {"SqlExpression": "SET sys.To = 'you'"},
                                        },
                                    }
                                ],
                            },
                            {"Name": "everything", "Rules": []},
                        ],
                    }
                ],
            }
        ],
        "Logging": {"Type": "File"},
    }
}


def test_configuration_of_the_emulator_is_taken_as_it_is(tmp_path: Path) -> None:
    (found,) = from_json(tmp_path, EMULATOR)
    assert found.name == "sbemulatorns"
    assert found.queues == (
        QueueDescription(
            name="jobs.in",
            dead_lettering_on_message_expiration=True,
            default_message_time_to_live_ms=3_600_000,
            duplicate_detection_history_ms=20_000,
            max_delivery_count=3,
            max_message_bytes=2_097_152,
        ),
        QueueDescription(name="bare", default_message_time_to_live_ms=MAX_DURATION_MS),
    )
    assert found.topics == (TopicDescription(name="news", default_message_time_to_live_ms=3_600_000),)
    correlation = CorrelationFilter(content_type="text/plain", label="x", properties=(("p", "v"),))
    sql = SqlFilter(expression="sys.To = 'me' AND colour = 'red'")
    assert found.subscriptions == (
        SubscriptionDescription(
            topic="news", name="by-header", max_delivery_count=3, rules=(RuleDescription(name="header", filter=correlation),)
        ),
        SubscriptionDescription(
            topic="news",
            name="by-sql",
            rules=(RuleDescription(name="sql", filter=sql, action=SqlAction(expression="SET sys.To = 'you'")),),
        ),
        SubscriptionDescription(topic="news", name="everything"),
    )


def test_emulator_configuration_may_have_comments_and_other_case(tmp_path: Path) -> None:
    text = '{ // mine\n"userconfig": {"namespaces": [{"name": "n", "queues": [{"name": "q", "properties": {"lockDuration": "PT30S"},}]}]}}'
    (found,) = from_json(tmp_path, text)
    assert found.queues == (QueueDescription(name="q", lock_duration_ms=30_000),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            '{"UserConfig": {"Namespaces": [{"Name": "a"},\n{"Name": "A"}]}}',
            "Config.json:2: UserConfig.Namespaces[1].Name: there are two namespaces named 'A'",
        ),
        (
            '{"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [{"Name": "q",\n"Properties": {"MaxDeliveryCount": NaN}}]}]}}',
            "Config.json:2: is not valid JSON: a value is expected, found 'NaN",
        ),
        (
            '{"UserConfig": {},\n"Other": ' + "[" * 80 + "]" * 80 + "}",
            "Config.json:2: is not valid JSON: nested deeper than 64 levels",
        ),
        ('{\n"Namespaces": []}', "Config.json:1: UserConfig is missing; this is not a Config.json of the emulator"),
        (
            '{"UserConfig": {\n"Namespace": []}}',
            "Config.json:2: UserConfig.Namespace: there is no such setting here. Did you mean Namespaces?",
        ),
        (
            '{"UserConfig": {"Namespaces": [{"Name": "n",\n"Queues": [{"Name": "q",\n"Properties": {\n"LockDuration": "1 minute"}}]}]}}',
            'Config.json:4: UserConfig.Namespaces[0].Queues[0].Properties.LockDuration: found "1 minute"; allowed is a duration',
        ),
        (
            '{"UserConfig": {"Namespaces": [{"Name": "n",\n"Queues": [{"Name": "q",\n"Properties": {\n"LockDurations": "PT1M"}}]}]}}',
            "Config.json:4: UserConfig.Namespaces[0].Queues[0].Properties.LockDurations: there is no such setting here. Did",
        ),
        (
            '{"UserConfig": {"Namespaces": [{"Name": "n", "Topics": [{"Name": "t", "Subscriptions": [{"Name": "s", "Rules": [\n'
            '{"Name": "r", "Properties": {"FilterType": "Sql"}}]}]}]}]}}',
            "Config.json:2: UserConfig.Namespaces[0].Topics[0].Subscriptions[0].Rules[0].Properties: FilterType is Sql, but SqlFilter",
        ),
    ],
)
def test_mistake_in_the_emulator_s_file_is_said_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        from_json(tmp_path, text)
    assert str(caught.value).replace(f"{tmp_path}/", "").startswith(says)


def test_locks_that_outlive_connections_are_asked_for_by_namespace_and_by_entity(tmp_path: Path) -> None:
    (only,) = from_toml(tmp_path, 'locks_outlive_connections = true\n[[queue]]\nname = "a"\nlocks_outlive_connections = false\n')
    assert (only.locks_outlive_connections, only.queues[0].locks_outlive_connections) == (True, False)
    first, second = from_toml(
        tmp_path,
        '[[namespace]]\nname = "a"\nlocks_outlive_connections = true\n[[namespace.topic]]\nname = "t"\n'
        '[[namespace.topic.subscription]]\nname = "s"\n[[namespace]]\nname = "b"\n',
    )
    assert (first.locks_outlive_connections, second.locks_outlive_connections) == (True, False)
    assert first.subscriptions[0].locks_outlive_connections is None
