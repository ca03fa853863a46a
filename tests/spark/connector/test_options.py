"""Options: every mistake names its option."""

from __future__ import annotations

import pytest

from tandem.spark.connector.options import OptionError, sink_options, source_options

CONNECTION = "Endpoint=sb://localhost:5672;SharedAccessKeyName=k;SharedAccessKey=v;UseDevelopmentEmulator=true"


def test_names_are_read_whatever_their_case() -> None:
    options = source_options({"CONNECTIONSTRING": CONNECTION, "Queue": "orders", "maxmessagespertrigger": "7"})
    assert (options.entities, options.max_messages) == (("orders",), 7)


@pytest.mark.parametrize(
    "given, paths",
    [
        ({"queue": "orders"}, ("orders",)),
        ({"queue": "orders", "subQueue": "deadLetter"}, ("orders/$DeadLetterQueue",)),
        ({"topic": "t", "subscription": "s"}, ("t/Subscriptions/s",)),
        ({"entities": "a, b/Subscriptions/c"}, ("a", "b/Subscriptions/c")),
        ({"entities": '["a", "b,c"]'}, ("a", "b,c")),
    ],
)
def test_what_to_read_is_named_in_several_ways(given: dict[str, str], paths: tuple[str, ...]) -> None:
    assert source_options({"connectionString": CONNECTION, **given}).entities == paths


@pytest.mark.parametrize(
    "given, option",
    [
        ({"queue": "q"}, "connectionString"),
        ({"connectionString": "nonsense", "queue": "q"}, "connectionString"),
        ({"connectionString": "Endpoint=sb://x", "queue": "q"}, "connectionString"),
        ({"connectionString": CONNECTION}, "queue"),
        ({"connectionString": CONNECTION, "queue": "q", "entities": "a"}, "queue"),
        ({"connectionString": CONNECTION, "topic": "t"}, "subscription"),
        ({"connectionString": CONNECTION, "entities": "a,A"}, "entities"),
        ({"connectionString": CONNECTION, "entities": "[1]"}, "entities"),
        ({"connectionString": CONNECTION, "queue": "q", "mode": "steal"}, "mode"),
        ({"connectionString": CONNECTION, "queue": "q", "leaseSeconds": "soon"}, "leaseSeconds"),
        ({"connectionString": CONNECTION, "queue": "q", "leaseSeconds": "1"}, "leaseSeconds"),
        ({"connectionString": CONNECTION, "queue": "q", "includePayload": "maybe"}, "includePayload"),
        ({"connectionString": CONNECTION, "queue": "q", "maxMesages": "5"}, "maxmesages"),
    ],
)
def test_a_wrong_option_of_the_source_is_named(given: dict[str, str], option: str) -> None:
    with pytest.raises(OptionError) as caught:
        source_options(given)
    assert caught.value.option == option
    assert f"option '{option}'" in str(caught.value)


@pytest.mark.parametrize(
    "given, option",
    [
        ({"queue": "a", "topic": "b"}, "topic"),
        ({"queue": "a", "onFailure": "shrug"}, "onFailure"),
        ({"queue": "a", "onFailure": "table"}, "failurePath"),
        ({"queue": "a", "failurePath": "x"}, "failurePath"),
        ({"queue": "a", "maxInFlight": "0"}, "maxInFlight"),
    ],
)
def test_a_wrong_option_of_the_sink_is_named(given: dict[str, str], option: str) -> None:
    with pytest.raises(OptionError) as caught:
        sink_options({"connectionString": CONNECTION, **given})
    assert caught.value.option == option


@pytest.mark.parametrize("given", [{"entities": "[]"}, {"entities": '[""]'}, {"queue": " ", "subQueue": "deadLetter"}, {"queue": "/"}])
def test_nothing_to_read_is_an_error(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="is empty"):
        source_options({"connectionString": CONNECTION, **given})
