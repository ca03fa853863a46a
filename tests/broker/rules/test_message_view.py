from __future__ import annotations

from uuid import UUID

import pytest

from tandem.broker.rules.message_view import SYSTEM_BY_NAME, MessageView, fold, view_of


def refuse() -> dict[str, object]:
    raise AssertionError("nobody asked for this scope")


def test_a_scope_nobody_asks_for_is_not_decoded() -> None:
    assert MessageView(refuse, lambda: {"a": 1}).user_value("A") == 1
    assert MessageView(lambda: {"Label": "x"}, refuse).system_properties() == {"Label": "x"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("m", "m"),
        (7, "7"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (b"m", "m"),
        (b"\xff", "ff"),
    ],
)
def test_ids_of_every_wire_type_are_text(value: object, text: str) -> None:
    assert view_of({"MessageId": value, "CorrelationId": value}, {}).system_properties() == {"MessageId": text, "CorrelationId": text}


def test_names_are_folded_character_by_character() -> None:
    assert fold("OrderÄ") == fold("orderä")
    assert fold("Maße") != fold("MASSE")
    assert len(fold("İx")) == 2


def test_current_and_former_names_of_a_system_property_are_one() -> None:
    assert SYSTEM_BY_NAME[fold("Subject")] is SYSTEM_BY_NAME[fold("LABEL")]
    assert SYSTEM_BY_NAME[fold("ScheduledEnqueueTime")].name == "ScheduledEnqueueTimeUtc"


def test_existence_is_not_having_a_value() -> None:
    view = view_of({}, {"Empty": None})
    assert view.has_user("EMPTY")
    assert view.user_value("empty") is None
    assert not view.has_user("other")


def test_names_that_differ_in_case_only_are_all_found() -> None:
    view = view_of({}, {"Color": 1, "COLOR": 2, "x": 3})
    assert view.keys_of("color") == ["Color", "COLOR"]
    assert view.keys_of("x") == ["x"]
    assert view.keys_of("y") == []
    assert (view.user_value("COLOR"), view.user_value("color")) == (2, 1)


def test_changes_to_a_scratch_stay_in_it_and_keep_the_senders_spelling() -> None:
    system: dict[str, object] = {"Label": "a"}
    user: dict[str, object] = {"Color": "red"}
    view = view_of(system, user)
    scratch = view.scratch()
    assert scratch.set_user("COLOR", "blue") == "Color"
    assert scratch.set_user("Size", 5) == "Size"
    assert scratch.user_value("SIZE") == 5
    assert scratch.remove_user("color") == "Color"
    assert scratch.remove_user("color") is None
    assert scratch.set_user("color", "green") == "color"
    scratch.set_system("Label", "b")
    assert (system, user) == ({"Label": "a"}, {"Color": "red"})
    assert scratch.user_properties() == {"Size": 5, "color": "green"}
