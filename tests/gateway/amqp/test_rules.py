"""Rules over AMQP: the management node of a subscription, spoken to as .NET, Java and JavaScript speak to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem import amqp
from tandem.model.entity import AuthorizationRule, Right, RuleDescription, SqlAction, SqlFilter
from tandem.testing import Bus
from tests.conformance.raw import Raw, message

SUB = "orders/Subscriptions/eu"


@pytest.fixture
def bus() -> Iterator[Bus]:
    with Bus() as bus:
        bus.create_topic("orders")
        bus.create_subscription("orders", "eu")
        yield bus


@pytest.fixture
def raw(bus: Bus) -> Iterator[Raw]:
    with Raw(bus.port) as raw:
        yield raw


def add(raw: Raw, name: str, **description: object) -> tuple[int, amqp.DecodedMessage]:
    return raw.request(SUB, "com.microsoft:add-rule", {"rule-name": name, "rule-description": description})


def rules(raw: Raw, **page: int) -> dict[str, Any]:
    """name -> (filter, action), both described."""
    body = {name: amqp.Int(value) for name, value in ({"top": 100, "skip": 0} | page).items()}
    status, reply = raw.request(SUB, "com.microsoft:enumerate-rules", body)
    if status == 204:
        return {}
    found: Any = reply.body
    described = [entry["rule-description"] for entry in found["rules"]]
    assert all(one.descriptor == 0x13700000004 for one in described)
    return {one.value[2]: (one.value[0], one.value[1]) for one in described}


def test_rules_are_added_listed_and_removed(raw: Raw) -> None:
    assert list(rules(raw)) == ["$Default"]
    assert rules(raw)["$Default"][0].descriptor == 0x1370000007
    sql = {"expression": "region = 'eu'"}
    assert add(raw, "sql", **{"sql-filter": sql, "sql-rule-action": {"expression": "SET seen = 1"}})[0] == 200
    correlation = {"correlation-id": "c", "label": "l", "properties": {"n": 5, "t": "x"}}
    assert add(raw, "correlated", **{"correlation-filter": correlation})[0] == 200
    found = rules(raw)
    assert list(found) == ["$Default", "correlated", "sql"]
    filter, action = found["sql"]
    assert (filter.descriptor, filter.value[0]) == (0x1370000006, "region = 'eu'")
    assert (action.descriptor, action.value[0]) == (0x13700000006, "SET seen = 1")
    # The compatibility level is an int: clients in Rust and .NET read nothing else there.
    assert [type(one.value[1]) for one in (filter, action)] == [amqp.Int, amqp.Int]
    filter, action = found["correlated"]
    assert (filter.descriptor, action.descriptor) == (0x1370000009, 0x13700000005)
    assert filter.value == ["c", None, None, None, "l", None, None, None, {"n": 5, "t": "x"}]
    assert raw.request(SUB, "com.microsoft:remove-rule", {"rule-name": "$Default"})[0] == 200
    assert list(rules(raw)) == ["correlated", "sql"]
    assert list(rules(raw, skip=1)) == ["sql"]
    assert list(rules(raw, top=1)) == ["correlated"]
    for name in ("correlated", "SQL"):
        assert raw.request(SUB, "com.microsoft:remove-rule", {"rule-name": name})[0] == 200
    assert rules(raw) == {}


def test_rules_added_over_amqp_filter_and_survive_a_restart(tmp_path: Path) -> None:
    with Bus(data_dir=tmp_path) as bus:
        bus.create_topic("orders")
        bus.create_subscription("orders", "eu")
        with Raw(bus.port) as raw:
            raw.request(SUB, "com.microsoft:remove-rule", {"rule-name": "$Default"})
            add(raw, "eu", **{"sql-filter": {"expression": "region = 'eu'"}})
            raw.feed("orders", "no", application_properties={"region": "us"})
            raw.feed("orders", "yes", application_properties={"region": "eu"})
            assert bus.counts(SUB).active == 1
        bus.restart()
        with Raw(bus.port) as raw:
            assert list(rules(raw)) == ["eu"]
            raw.feed("orders", "no", application_properties={"region": "us"})
            raw.feed("orders", "again", application_properties={"region": "eu"})
            assert [one.text for one in raw.receiver(SUB).receive(2)] == ["yes", "again"]


def test_constant_filters_keep_their_own_descriptors(raw: Raw) -> None:
    add(raw, "none", **{"sql-filter": {"expression": "1 = 0"}})
    add(raw, "all", **{"sql-filter": {"expression": "1=1"}})
    found = rules(raw)
    assert (found["none"][0].descriptor, found["all"][0].descriptor) == (0x1370000008, 0x1370000007)


@pytest.mark.parametrize(
    ("description", "status", "words"),
    [
        ({"sql-filter": {"expression": "region = = 1"}}, 400, "column"),
        ({"sql-filter": {"expression": 5}}, 400, "'expression' of sql-filter must be a string"),
        ({"sql-filter": {}}, 400, "sql-filter needs 'expression'"),
        ({"sql-filter": {"expression": "a = 1"}, "correlation-filter": {"label": "x"}}, 400, "a rule has one filter"),
        ({"correlation-filter": {"label": 5}}, 400, "'label' of correlation-filter must be a string"),
        ({"correlation-filter": {}}, 400, "compares nothing"),
        ({"sql-filter": {"expression": "a = " + "1" * 2000}}, 400, "1024"),
    ],
)
def test_wrong_rules_are_refused_with_the_reason_and_leave_no_trace(
    raw: Raw, description: dict[str, object], status: int, words: str
) -> None:
    found, reply = add(raw, "wrong", **description)
    assert found == status
    assert words in str(reply.application_properties["statusDescription"])
    assert list(rules(raw)) == ["$Default"]


def test_duplicate_missing_and_misplaced_rules_say_so(bus: Bus, raw: Raw) -> None:
    assert add(raw, "$default", **{"sql-filter": {"expression": "a = 1"}})[0] == 409
    status, reply = raw.request(SUB, "com.microsoft:remove-rule", {"rule-name": "nobody"})
    assert (status, reply.application_properties["errorCondition"]) == (404, "amqp:not-found")
    bus.create_queue("plain")
    status, reply = raw.request("plain", "com.microsoft:enumerate-rules", {"top": amqp.Int(1), "skip": amqp.Int(0)})
    assert status == 400 and "has no rules" in str(reply.application_properties["statusDescription"])
    status, _ = raw.request(SUB, "com.microsoft:add-rule", {"rule-description": {}})
    assert status == 400
    status, _ = raw.request(SUB, "com.microsoft:enumerate-rules", {"top": amqp.Int(-1), "skip": amqp.Int(0)})
    assert status == 400


def test_changing_rules_needs_manage_and_listing_needs_listen(bus: Bus) -> None:
    keys = tuple(
        AuthorizationRule(key_name=right.value, primary_key="k" * 44, secondary_key="s" * 44, rights=frozenset({right}))
        for right in (Right.LISTEN, Right.SEND)
    )
    bus.create_topic("guarded", authorization_rules=keys)
    bus.create_subscription("guarded", "s")
    from tests.conformance.raw import token_for

    path = "guarded/Subscriptions/s"
    for name, may_list in (("Listen", True), ("Send", False)):
        with Raw(bus.port, user="", password="") as raw:
            assert raw.put_token(path, token_for(bus.port, "guarded", name, "k" * 44))[0] == 202
            status, _ = raw.request(path, "com.microsoft:enumerate-rules", {"top": amqp.Int(9), "skip": amqp.Int(0)})
            assert status == (200 if may_list else 401)
            for operation in ("add-rule", "remove-rule"):
                body = {"rule-name": "$Default", "rule-description": {"sql-filter": {"expression": "a = 1"}}}
                status, reply = raw.request(path, f"com.microsoft:{operation}", body)
                assert (status, reply.application_properties["errorCondition"]) == (401, "amqp:unauthorized-access")


def test_explain_says_which_rules_match_and_what_stands_in_the_way(bus: Bus, raw: Raw) -> None:
    wanted = RuleDescription(
        name="big", filter=SqlFilter(expression="region = 'eu' AND total > 100"), action=SqlAction(expression="SET a = 1")
    )
    bus.create_subscription("orders", "big", rules=[wanted])
    payload = message("body", application_properties={"region": "eu", "total": 12})
    status, reply = raw.request("orders", "com.tandem:explain-rules", {"message": payload})
    answer: Any = reply.body
    by_name = {one["name"]: one for one in answer["subscriptions"]}
    assert status == 200 and [by_name[name]["matches"] for name in ("eu", "big")] == [True, False]
    [rule] = by_name["big"]["rules"]
    assert rule["name"] == "big" and not rule["matches"]
    assert rule["reasons"] == ["total > 100 is false: total = 12"]
    payload = message("body", application_properties={"region": "eu", "total": 120})
    _, reply = raw.request("orders/Subscriptions/big", "com.tandem:explain-rules", {"message": payload})
    answer = reply.body
    [one] = answer["subscriptions"]
    assert one["matches"] and one["rules"][0]["changes"] == 2
    assert "SET a = 1" in one["rules"][0]["text"]
    assert bus.counts(SUB).total == 0
    assert raw.request("orders", "com.tandem:explain-rules", {"message": "text"})[0] == 400
    assert raw.request("orders", "com.tandem:explain-rules", {"message": b"\x00"})[0] == 400
