from __future__ import annotations

import datetime
import uuid

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import given
from hypothesis import strategies as st

from tandem.amqp import DecodedMessage, Described, Symbol, Timestamp, UInt, decode_message
from tandem.client import envelope
from tandem.client.envelope import EnvelopeError, unwrap_payload, wrap, wrap_payload
from tandem.client.sdk_codec import message_from_payload, payload_from_message

UTC = datetime.UTC
NOW = 1_700_000_000_000


def full_message() -> ServiceBusMessage:
    return ServiceBusMessage(
        b"\x00\xffbody",
        session_id="s-1",
        message_id="m-1",
        time_to_live=datetime.timedelta(hours=3),
        scheduled_enqueue_time_utc=datetime.datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC),
        subject="label",
        correlation_id="c",
        to="somewhere",
        reply_to="back",
        reply_to_session_id="rs",
        content_type="text/plain",
        partition_key="s-1",
        application_properties={
            "int": 5,
            "float": 1.5,
            "true": True,
            "none": None,
            "text": "é",
            "when": datetime.datetime(2020, 1, 2),
            "id": uuid.UUID(int=7),
        },
    )


def equal_parts(a: DecodedMessage, b: DecodedMessage) -> bool:
    """Equal including the wire type of every value, whatever the order of map entries."""

    def typed(items):
        # The SDK stamps these two with the second in which it encodes.
        return {str(k): (type(v).__name__, v) for k, v in items.items() if k not in ("creation-time", "absolute-expiry-time")}

    return all(
        typed(getattr(a, n)) == typed(getattr(b, n)) for n in ("header", "message_annotations", "properties", "application_properties")
    ) and (a.body_sections == b.body_sections and a.footer_section == b.footer_section)


def test_a_wrapped_message_carries_four_aliases_and_nothing_the_backlog_queue_would_act_upon():
    parts = decode_message(payload_from_message(wrap(full_message(), "orders/eu", NOW)))
    aliases = {k: v for k, v in parts.application_properties.items() if str(k).startswith("x-ms-")}
    assert aliases == {
        "x-ms-path": "orders/eu",
        "x-ms-sessionid": "s-1",
        "x-ms-timetolive": Described(Symbol("com.microsoft:timespan"), 3 * 3600 * 10_000_000),
        "x-ms-scheduledenqueuetimeutc": 1_935_817_689_000,
    }
    assert isinstance(aliases["x-ms-scheduledenqueuetimeutc"], Timestamp)
    assert "ttl" not in parts.header
    assert "group-id" not in parts.properties and "absolute-expiry-time" not in parts.properties
    assert "x-opt-scheduled-enqueue-time" not in parts.message_annotations
    assert parts.message_annotations["x-opt-paired-diverted-utc"] == NOW


def test_wrapping_and_unwrapping_gives_back_the_very_same_message():
    message = full_message()
    original = payload_from_message(message)
    unwrapped = unwrap_payload(payload_from_message(wrap(message, "orders", NOW)))
    assert unwrapped.destination.path == "orders"
    assert equal_parts(decode_message(unwrapped.payload), decode_message(original))


def test_the_callers_own_message_is_left_alone():
    message = full_message()
    before = decode_message(payload_from_message(message))
    wrap(message, "orders", NOW)
    after = decode_message(payload_from_message(message))
    assert equal_parts(after, before) and after.properties.keys() == before.properties.keys()
    assert "x-ms-path" not in message.application_properties


def test_objects_and_encoded_parts_are_wrapped_alike():
    message = full_message()
    assert equal_parts(
        decode_message(wrap_payload(payload_from_message(message), "q", NOW)), decode_message(payload_from_message(wrap(message, "q", NOW)))
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"message_id": "m", "subject": "s", "correlation_id": "c"},
        {"application_properties": {"a": 1, b"b": b"c"}, "partition_key": "k"},
        {"session_id": "s"},
        {"time_to_live": datetime.timedelta(seconds=5)},
        {"scheduled_enqueue_time_utc": datetime.datetime(2030, 1, 1)},
    ],
    ids=str,
)
def test_the_short_way_of_wrapping_writes_the_same_bytes_as_the_long_one(options: dict, monkeypatch: pytest.MonkeyPatch):
    message = ServiceBusMessage(b"body", **options)
    before = payload_from_message(message)
    short = payload_from_message(wrap(message, "orders", 1_750_000_000_000))
    monkeypatch.setattr(envelope, "_only_needs_a_path", lambda raw: False)
    assert short == payload_from_message(wrap(message, "orders", 1_750_000_000_000))
    if "time_to_live" not in options:  # which the SDK stamps with the time of day
        assert payload_from_message(message) == before


def test_what_was_never_set_is_not_aliased_and_not_invented():
    message = ServiceBusMessage("plain")
    parts = decode_message(payload_from_message(wrap(message, "q", NOW)))
    assert list(parts.application_properties) == ["x-ms-path"]
    assert equal_parts(decode_message(unwrap_payload(parts.encode()).payload), decode_message(payload_from_message(message)))


def test_an_empty_session_id_is_a_session_id():
    message = ServiceBusMessage("x", session_id="")
    unwrapped = unwrap_payload(payload_from_message(wrap(message, "q", NOW)))
    assert decode_message(unwrapped.payload).properties["group-id"] == ""


def test_what_the_backlogs_broker_added_does_not_come_home():
    parts = decode_message(payload_from_message(wrap(full_message(), "q", NOW)))
    parts.message_annotations[Symbol("x-opt-enqueued-time")] = Timestamp(1)
    parts.message_annotations[Symbol("x-opt-sequence-number")] = 9
    parts.message_annotations[Symbol("x-opt-locked-until")] = Timestamp(2)
    parts.delivery_annotations[Symbol("x-opt-lock-token")] = uuid.UUID(int=1)
    parts.header["delivery-count"] = UInt(3)
    assert equal_parts(decode_message(unwrap_payload(parts.encode()).payload), decode_message(payload_from_message(full_message())))


@pytest.mark.parametrize("alias", envelope.ALIASES)
def test_a_message_that_already_carries_an_alias_is_refused(alias: str):
    message = ServiceBusMessage("x", application_properties={alias: "mine"})
    assert envelope.alias_in(message.application_properties) == alias
    with pytest.raises(EnvelopeError):
        wrap(message, "q", NOW)
    with pytest.raises(EnvelopeError):
        wrap_payload(payload_from_message(message), "q", NOW)


@pytest.mark.parametrize("path", [None, 5, "", b""], ids=["missing", "number", "empty", "empty bytes"])
def test_a_message_without_a_usable_path_is_dead_lettered_for_that(path: object):
    properties = {} if path is None else {"x-ms-path": path}
    with pytest.raises(EnvelopeError) as caught:
        unwrap_payload(DecodedMessage(application_properties=properties).encode())
    assert caught.value.reason == "no queue path"


@pytest.mark.parametrize(
    ("alias", "value"),
    [
        ("x-ms-sessionid", 5),
        ("x-ms-timetolive", "three hours"),
        ("x-ms-timetolive", 1.5),
        ("x-ms-timetolive", True),
        ("x-ms-timetolive", Described(Symbol("something:else"), 5)),
        ("x-ms-scheduledenqueuetimeutc", "soon"),
        ("x-ms-scheduledenqueuetimeutc", 2.5),
        ("x-ms-scheduledenqueuetimeutc", Described(Symbol("com.microsoft:timespan"), 5)),
    ],
)
def test_an_alias_of_the_wrong_type_is_dead_lettered_naming_property_and_types(alias: str, value: object):
    with pytest.raises(EnvelopeError) as caught:
        unwrap_payload(DecodedMessage(application_properties={"x-ms-path": "q", alias: value}).encode())
    assert caught.value.reason == "property extraction"
    assert alias in caught.value.description and type(value).__name__ in caught.value.description


def test_bytes_that_are_no_message_are_dead_lettered():
    with pytest.raises(EnvelopeError) as caught:
        unwrap_payload(b"\x00\x53\x74\xc1\xff")
    assert caught.value.reason == "property extraction"


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (Described(Symbol("com.microsoft:timespan"), 15_000_000), 1_500),
        (1_500, 1_500),
        (UInt(1_500), 1_500),
        ("PT1.5S", 1_500),
        ("P1DT2H3M4S", 93_784_000),
        (b"PT1M", 60_000),
        (datetime.timedelta(seconds=2), 2_000),
    ],
)
def test_time_spans_are_read_in_every_form_a_client_may_have_written(value: object, ms: int):
    assert envelope.read_timespan("x", value) == ms


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (Timestamp(5), 5),
        (5, 5),
        ("1970-01-01T00:00:01+00:00", 1_000),
        ("1970-01-01T00:00:01Z", 1_000),
        (datetime.datetime(1970, 1, 1, 0, 0, 2), 2_000),
        (Described(Symbol("com.microsoft:datetime-offset"), 621_355_968_000_000_000 + 10_000), 1),
    ],
)
def test_instants_are_read_in_every_form_a_client_may_have_written(value: object, ms: int):
    assert envelope.read_instant("x", value) == ms


def test_a_time_to_live_beyond_what_a_header_holds_survives():
    parts = DecodedMessage(
        header={"ttl": UInt(0xFFFFFFFF)},
        properties={"creation-time": Timestamp(1_000), "absolute-expiry-time": Timestamp(9_000_000_000_000)},
    )
    assert decode_message(unwrap_payload(wrap_payload(parts.encode(), "q", NOW)).payload) == parts


def test_time_in_the_backlog_counts_only_when_asked_for():
    wrapped = payload_from_message(wrap(ServiceBusMessage("x", time_to_live=datetime.timedelta(seconds=60)), "q", NOW))
    assert decode_message(unwrap_payload(wrapped).payload).header["ttl"] == 60_000
    assert decode_message(unwrap_payload(wrapped, now_ms=NOW + 20_000).payload).header["ttl"] == 40_000
    with pytest.raises(EnvelopeError) as caught:
        unwrap_payload(wrapped, now_ms=NOW + 60_000)
    assert caught.value.reason == "TTLExpiredException"


def test_a_body_that_can_be_read_only_once_raises_instead_of_being_lost():
    message = AmqpAnnotatedMessage(data_body=[b"x"])
    message._data_body = [iter([b"once"])]
    with pytest.raises(TypeError, match="only once"):
        wrap(message, "q", NOW)


def test_the_envelope_never_adds_more_than_the_head_room_kept_for_it():
    message = ServiceBusMessage(
        "x",
        session_id="s" * 128,
        time_to_live=datetime.timedelta(days=1),
        scheduled_enqueue_time_utc=datetime.datetime(2040, 1, 1, tzinfo=UTC),
    )
    grown = len(payload_from_message(wrap(message, "p" * 260, NOW))) - len(payload_from_message(message))
    assert grown <= envelope.HEADROOM_BYTES


value = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.uuids(),
    st.integers(0, 2**32 - 1).map(UInt),
    st.integers(-(2**60), 2**60).map(Timestamp),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=10).map(Symbol),
)


@given(
    session=st.none() | st.text(max_size=20),
    ttl=st.none() | st.integers(1, 2**32 - 2),
    scheduled=st.none() | st.integers(0, 2**40),
    properties=st.dictionaries(st.text(max_size=10).filter(lambda k: not k.startswith(("x-ms-", "DeadLetter"))), value, max_size=5),
    message_id=st.one_of(st.text(max_size=10), st.uuids(), st.binary(max_size=8)),
)
def test_any_message_comes_home_with_every_value_and_wire_type_equal(session, ttl, scheduled, properties, message_id):
    parts = DecodedMessage(
        properties={"message-id": message_id}, application_properties=properties, body_sections=b"\x00\x53\x75\xa0\x02hi"
    )
    if session is not None:
        parts.properties["group-id"] = session
    if ttl is not None:
        parts.header["ttl"] = UInt(ttl)
    if scheduled is not None:
        parts.message_annotations[Symbol("x-opt-scheduled-enqueue-time")] = Timestamp(scheduled)
    assert equal_parts(decode_message(unwrap_payload(wrap_payload(parts.encode(), "q", NOW)).payload), parts)
    assert equal_parts(decode_message(payload_from_message(message_from_payload(parts.encode()))), parts)
