"""Fan-out: every subscription that wants a message gets it, none that does not, and none can refuse it for the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tandem import amqp
from tandem.broker.entities.topic import compile_rules
from tandem.model.entity import RuleDescription, SqlAction, SqlFilter, SubscriptionDescription
from tandem.model.limits import Limits
from tandem.testing import Bus
from tests.conformance.raw import Raw, Refused


def rule(name: str, filter: str, action: str | None = None) -> RuleDescription:
    return RuleDescription(name=name, filter=SqlFilter(expression=filter), action=None if action is None else SqlAction(expression=action))


def active(bus: Bus, topic: str, *subscriptions: str) -> list[int]:
    return [bus.counts(f"{topic}/Subscriptions/{name}").active for name in subscriptions]


def test_each_subscription_gets_what_its_rules_want() -> None:
    with Bus() as bus, Raw(bus.port) as raw:
        bus.create_topic("t")
        bus.create_subscription("t", "all")
        bus.create_subscription("t", "eu", rules=[rule("eu", "region = 'eu'")])
        bus.create_subscription("t", "big", rules=[rule("big", "total > 10")])
        bus.create_subscription("t", "either", rules=[rule("eu", "region = 'eu'"), rule("us", "region IN ('us', 'ca')")])
        bus.create_subscription("t", "two", rules=[rule("a", "total > 0", "SET copy = 1"), rule("b", "total > 0", "SET copy = 2")])
        bus.create_subscription("t", "none", rules=[rule("no", "1 = 0")])
        raw.feed("t", "one", application_properties={"region": "eu", "total": 5})
        assert active(bus, "t", "all", "eu", "big", "either", "two", "none") == [1, 1, 0, 1, 2, 0]
        raw.feed("t", "two", application_properties={"region": "ca", "total": 50})
        assert active(bus, "t", "all", "eu", "big", "either", "two", "none") == [2, 1, 1, 2, 4, 0]
        copies = raw.receiver("t/Subscriptions/two").receive(2)
        assert [one.message.application_properties["copy"] for one in copies] == [1, 2]


def test_copy_without_session_id_is_dead_lettered_and_the_publisher_hears_nothing() -> None:
    with Bus() as bus, Raw(bus.port) as raw:
        bus.create_topic("t")
        bus.create_subscription("t", "plain")
        bus.create_subscription("t", "sessions", requires_session=True)
        bus.create_subscription("t", "acted", requires_session=True, rules=[rule("r", "1 = 1", "REMOVE sys.SessionId")])
        raw.feed("t", "bare")
        assert active(bus, "t", "plain", "sessions", "acted") == [1, 0, 0]
        [dead] = raw.receiver("t/Subscriptions/sessions/$DeadLetterQueue").receive()
        assert dead.text == "bare" and dead.message.application_properties["DeadLetterReason"] == "Session ID is null"
        raw.feed("t", "with", session_id="s")
        assert active(bus, "t", "plain", "sessions", "acted") == [2, 1, 0]
        assert bus.counts("t/Subscriptions/acted").dead_lettered == 2


def test_rules_that_change_hold_for_the_next_message() -> None:
    with Bus() as bus, Raw(bus.port) as raw:
        bus.create_topic("t")
        bus.create_subscription("t", "s")
        raw.feed("t", "one")
        path = "t/Subscriptions/s"
        raw.request(path, "com.microsoft:add-rule", {"rule-name": "a", "rule-description": {"sql-filter": {"expression": "a = 1"}}})
        raw.request(path, "com.microsoft:remove-rule", {"rule-name": "$Default"})
        raw.feed("t", "two")
        raw.feed("t", "three", application_properties={"a": 1})
        bus.create_subscription("t", "later")
        raw.feed("t", "four")
        assert active(bus, "t", "s", "later") == [2, 1]


def test_time_to_live_of_the_topic_caps_copies_that_an_action_changed() -> None:
    with Bus() as bus, Raw(bus.port) as raw:
        bus.create_topic("t", default_message_time_to_live=10)
        bus.create_subscription("t", "plain")
        bus.create_subscription("t", "acted", rules=[rule("r", "1 = 1", "SET a = 1")])
        raw.feed("t", "x", header={"ttl": 60_000})
        bus.advance(9)
        assert active(bus, "t", "plain", "acted") == [1, 1]
        bus.advance(2)
        assert active(bus, "t", "plain", "acted") == [0, 0]


@pytest.mark.parametrize("kind", ["disk"])
def test_what_was_fanned_out_is_there_after_a_restart(tmp_path: Path, kind: str) -> None:
    with Bus(data_dir=tmp_path) as bus:
        bus.create_topic("t")
        bus.create_subscription("t", "all")
        bus.create_subscription("t", "acted", rules=[rule("r", "n > 1", "SET a = n * 2")])
        with Raw(bus.port) as raw:
            for n in range(4):
                raw.feed("t", f"m{n}", application_properties={"n": n})
        bus.restart()
        assert active(bus, "t", "all", "acted") == [4, 2]
        with Raw(bus.port) as raw:
            assert [one.text for one in raw.receiver("t/Subscriptions/all").receive(4)] == ["m0", "m1", "m2", "m3"]
            copies = raw.receiver("t/Subscriptions/acted").receive(2)
            assert [one.message.application_properties["a"] for one in copies] == [4, 6]


def test_a_topic_is_full_when_its_subscriptions_together_are() -> None:
    with Bus() as bus, Raw(bus.port) as raw:
        bus.create_topic("t", max_size_megabytes=1)
        bus.create_subscription("t", "one")
        bus.create_subscription("t", "two")
        for _ in range(3):
            raw.feed("t", "x" * 200_000)
        with pytest.raises(Refused, match="maximum size of topic 't'") as refused:
            raw.feed("t", "x" * 200_000)
        assert refused.value.error is not None and refused.value.error.condition == "amqp:resource-limit-exceeded"
        assert active(bus, "t", "one", "two") == [3, 3]
        receiver = raw.receiver("t/Subscriptions/one")
        for arrival in receiver.receive(2):
            receiver.settle(arrival, amqp.ACCEPTED)
        raw.feed("t", "x" * 200_000)
        assert active(bus, "t", "one", "two") == [2, 4]


def test_many_small_messages_fill_a_topic_as_well() -> None:
    with Bus() as bus, Raw(bus.port) as raw:
        bus.create_topic("t", max_size_megabytes=1)
        bus.create_subscription("t", "plain")
        bus.create_subscription("t", "acted", rules=[rule("r", "1 = 1", "SET a = 1")])
        with pytest.raises(Refused, match="maximum size of topic 't'"):
            for _ in range(100):
                raw.feed("t", *["x" * 10_000] * 10)
        held = sum(bus.counts(f"t/Subscriptions/{name}").size_bytes for name in ("plain", "acted"))
        assert 1_000_000 < held <= 1_048_576 + 20_000


def test_a_topic_knows_the_ids_it_has_seen_after_a_restart() -> None:
    with Bus() as bus:
        bus.create_topic("once", requires_duplicate_detection=True)
        bus.create_subscription("once", "s")
        for _ in range(2):
            with Raw(bus.port) as raw:
                raw.feed("once", "x", message_id="the same")
            assert active(bus, "once", "s") == [1]
            bus.restart()
        assert active(bus, "once", "s") == [1]


def test_rules_that_stay_are_not_compiled_again() -> None:
    one, other = RuleDescription(name="one", filter=SqlFilter(expression="n = 1")), RuleDescription(name="other")
    description = SubscriptionDescription(topic="t", name="s", rules=(one,))
    before = compile_rules(description, Limits())
    after = compile_rules(replace(description, rules=(one, other)), Limits(), before)
    changed = compile_rules(replace(description, rules=(replace(one, filter=SqlFilter(expression="n = 2")),)), Limits(), after)
    assert after.rules[0] is before.rules[0] and [rule.name for rule in after.rules] == ["one", "other"]
    assert changed.rules[0] is not before.rules[0]
