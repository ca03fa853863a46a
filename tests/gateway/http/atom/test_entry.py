"""Entries from clients: what they set is read with its type, and what is wrong is named."""

from __future__ import annotations

import pytest

from tandem.gateway.http.atom.entry import read_entry
from tandem.gateway.http.atom.rules import write_rule
from tandem.model.entity import EntityStatus, FalseFilter, RuleDescription, SqlFilter, TrueFilter
from tandem.model.errors import ArgumentRefused

SB = 'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" xmlns:i="http://www.w3.org/2001/XMLSchema-instance"'


def entry(kind: str, content: str) -> bytes:
    content = f"<{kind} {SB}>{content}</{kind}>"
    return f'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">{content}</content></entry>'.encode()


def test_only_what_was_set_is_read() -> None:
    wanted = read_entry(
        entry("QueueDescription", "<LockDuration>PT30S</LockDuration><Status>disabled</Status><EnableExpress>1</EnableExpress>"), ""
    )
    assert wanted.fields == {"lock_duration_ms": 30_000, "status": EntityStatus.DISABLED, "enable_express": True}
    assert wanted.max_message_kilobytes is None


def test_nil_counts_as_not_set_and_unknown_elements_are_passed_over() -> None:
    content = '<ForwardTo i:nil="true"/><MessageCount>5</MessageCount><FromTheFuture><x/></FromTheFuture>'
    assert read_entry(entry("QueueDescription", content), "").fields == {}


def test_default_rule_of_a_subscription_is_read() -> None:
    content = '<DefaultRuleDescription><Filter i:type="FalseFilter"/><Name>mine</Name></DefaultRuleDescription>'
    assert read_entry(entry("SubscriptionDescription", content), "").default_rule == RuleDescription(name="mine", filter=FalseFilter())


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"<feed/>", "must be an ATOM <entry>"),
        (b"<entry/>", "one <content>"),
        (b"<entry><content/></entry>", "one <content>"),
        (b"<entry><content><a/><b/></content></entry>", "one <content>"),
        (entry("RelayDescription", ""), "describes a <RelayDescription>; allowed are QueueDescription"),
        (entry("QueueDescription", "<Status>Asleep</Status>"), "Status is 'Asleep'; allowed are Active, Disabled"),
        (entry("QueueDescription", "<RequiresSession>maybe</RequiresSession>"), "RequiresSession is 'maybe'; true or false"),
        (entry("QueueDescription", "<MaxDeliveryCount>many</MaxDeliveryCount>"), "MaxDeliveryCount is 'many'; a whole number"),
        (entry("QueueDescription", "<MaxDeliveryCount>1e3</MaxDeliveryCount>"), "a whole number"),
        (entry("QueueDescription", "<MaxDeliveryCount>99999999999999999999</MaxDeliveryCount>"), "a whole number"),
        (entry("QueueDescription", "<LockDuration>1 minute</LockDuration>"), "LockDuration is '1 minute'; a duration"),
        (entry("QueueDescription", "<LockDuration>PT1M</LockDuration>" * 2), "contains <LockDuration> twice"),
        (entry("QueueDescription", "<AuthorizationRules><x/></AuthorizationRules>"), "only <AuthorizationRule>"),
        (
            entry(
                "QueueDescription",
                "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Own</AccessRights></Rights></AuthorizationRule></AuthorizationRules>",
            ),
            "AccessRights is 'Own'",
        ),
        (entry("RuleDescription", '<Filter i:type="MagicFilter"/>'), "Filter has the type 'MagicFilter'"),
        (entry("RuleDescription", "<Filter/>"), "Filter has the type ''"),
        (entry("RuleDescription", '<Filter i:type="SqlFilter"/>'), "needs an SqlExpression"),
        (entry("RuleDescription", '<Action i:type="Explode"/>'), "Action has the type 'Explode'"),
        (entry("RuleDescription", "<Name>other</Name>"), "names the rule 'r' and its description 'other'"),
    ],
)
def test_wrong_entries_are_refused_with_the_reason(body: bytes, says: str) -> None:
    with pytest.raises(ArgumentRefused, match=says):
        read_entry(body, "r")


def pair(value: str) -> bytes:
    parameters = f"<Parameters><KeyValueOfstringanyType><Key>k</Key>{value}</KeyValueOfstringanyType></Parameters>"
    return entry("RuleDescription", f'<Filter i:type="SqlFilter"><SqlExpression>1=1</SqlExpression>{parameters}</Filter>')


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ('<Value i:type="d:int">x</Value>', "the value of 'k' is 'x', which is no int"),
        (f'<Value i:type="d:long">{"9" * 5000}</Value>', "which is no long"),
        ('<Value i:type="d:boolean">2</Value>', "no boolean"),
        ('<Value i:type="d:double">one</Value>', "no double"),
        ('<Value i:type="d:dateTime">noon</Value>', "k is 'noon'; an instant"),
        ('<Value i:type="d:duration">P1Y</Value>', "k is 'P1Y'; a duration"),
        ('<Value i:type="d:duration">P999999999999D</Value>', "no duration"),
        ('<Value i:type="d:guid">x</Value>', "no guid"),
        ('<Value i:type="d:anyURI">x</Value>', "has the type 'anyURI'; allowed are"),
        ("", "with <Key> and <Value>"),
        ("<Value>1</Value></KeyValueOfstringanyType><KeyValueOfstringanyType><Key>k</Key><Value/>", "has the key 'k' twice"),
        ("<Value>1</Value></KeyValueOfstringanyType><Other>", "found"),
    ],
)
def test_wrong_values_are_refused_with_the_reason(value: str, says: str) -> None:
    body = pair(value)
    if "<Other>" in value:
        body = body.replace(b"<Other></KeyValueOfstringanyType>", b"<Other/>")
    with pytest.raises(ArgumentRefused, match=says):
        read_entry(body, "r")


@pytest.mark.parametrize("value", [True, False, 5, -(2**31), 2**31, 1.5, float("inf"), float("-inf"), "text", "", None])
def test_values_written_are_read_back_with_their_type(value: object) -> None:
    rule = RuleDescription(name="r", filter=SqlFilter(expression="a<b", parameters=(("k", value),)))
    wanted = read_entry(entry("RuleDescription", write_rule(rule)), "r")
    assert wanted.rule == rule
    assert repr(wanted.rule) == repr(rule)


def test_rule_without_a_filter_matches_everything() -> None:
    assert read_entry(entry("RuleDescription", ""), "r").rule == RuleDescription(name="r", filter=TrueFilter())
