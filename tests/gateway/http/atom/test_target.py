"""What administration addresses mean, with slashes encoded or not."""

from __future__ import annotations

import pytest

from tandem.gateway.http.atom.target import AtomTarget, Kind, read_page, read_target
from tandem.gateway.http.types import split_target
from tandem.model.errors import ArgumentOutOfRange, ArgumentRefused, BusError, EntityNotFound


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("/q", AtomTarget(Kind.ENTITY, "q")),
        ("/a%2Fb", AtomTarget(Kind.ENTITY, "a/b")),
        ("/a/b/c", AtomTarget(Kind.ENTITY, "a/b/c")),
        ("/", AtomTarget(Kind.ENTITY, "")),
        ("/?enrich=false", AtomTarget(Kind.ENTITY, "")),
        ("/a/", AtomTarget(Kind.ENTITY, "a/")),
        ("/$namespaceinfo", AtomTarget(Kind.NAMESPACE)),
        ("/%24NamespaceInfo", AtomTarget(Kind.NAMESPACE)),
        ("/$Resources/Queues?$skip=0", AtomTarget(Kind.QUEUES)),
        ("/$resources/topics/", AtomTarget(Kind.TOPICS)),
        ("/t/subscriptions", AtomTarget(Kind.SUBSCRIPTIONS, "t")),
        ("/t/Subscriptions/?$skip=0&$top=100", AtomTarget(Kind.SUBSCRIPTIONS, "t")),
        ("/t/Subscriptions/?enrich=false", AtomTarget(Kind.SUBSCRIPTION, "t", "")),
        ("/t%2Fu/Subscriptions/s", AtomTarget(Kind.SUBSCRIPTION, "t/u", "s")),
        ("/t/u/subscriptions/s", AtomTarget(Kind.SUBSCRIPTION, "t/u", "s")),
        ("/t/subscriptions/s/rules", AtomTarget(Kind.RULES, "t", "s")),
        ("/t/Subscriptions/s/Rules/?%24top=5", AtomTarget(Kind.RULES, "t", "s")),
        ("/t/subscriptions/s/rules/", AtomTarget(Kind.RULES, "t", "s")),
        ("/t/subscriptions/s/rules/?enrich=False", AtomTarget(Kind.RULE, "t", "s", "")),
        ("/t/subscriptions/s/rules/%24Default", AtomTarget(Kind.RULE, "t", "s", "$Default")),
        ("/a%2Fsubscriptions%2Fb", AtomTarget(Kind.ENTITY, "a/subscriptions/b")),
        ("/subscriptions", AtomTarget(Kind.ENTITY, "subscriptions")),
        ("http://host:1/t/subscriptions/s?x=1", AtomTarget(Kind.SUBSCRIPTION, "t", "s")),
    ],
)
def test_address_names_its_target(address: str, target: AtomTarget) -> None:
    assert read_target(*split_target(address)) == target


@pytest.mark.parametrize("address", ["/$cbs", "/$Resources", "/$Resources/queues/x", "/$management"])
def test_reserved_addresses_that_mean_nothing_are_not_found(address: str) -> None:
    with pytest.raises(EntityNotFound):
        read_target(*split_target(address))


@pytest.mark.parametrize("address", ["/%ff", "/a?x=%ff", "/a?" + "&".join(f"p{i}=1" for i in range(100))])
def test_address_that_cannot_be_decoded_is_refused(address: str) -> None:
    with pytest.raises(ArgumentRefused):
        split_target(address)


def test_pages_have_bounds_and_a_prefix() -> None:
    assert (read_page({}).skip, read_page({}).top, read_page({}).prefix) == (0, 100, "")
    assert read_page({"$skip": "5", "$top": "10"}).top == 10
    assert read_page({"$top": "999999"}).top == 1000
    for text in ("startswith(path,'a/b') eq true", " StartsWith( path , 'a/b' ) EQ True "):
        assert read_page({"$filter": text}).prefix == "a/b"
    assert read_page({"$filter": "startswith(path,'it''s') eq true"}).prefix == "it's"


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ({"$skip": "-1"}, ArgumentOutOfRange),
        ({"$top": "0"}, ArgumentOutOfRange),
        ({"$top": "x"}, ArgumentOutOfRange),
        ({"$top": "\u0665"}, ArgumentOutOfRange),
        ({"$filter": "messageCount gt 5"}, ArgumentRefused),
        ({"$filter": "startswith(path,'a') eq false"}, ArgumentRefused),
        ({"$filter": "startswith(path,'a' or 'b') eq true"}, ArgumentRefused),
    ],
)
def test_bad_paging_is_refused(query: dict[str, str], error: type[BusError]) -> None:
    with pytest.raises(error):
        read_page(query)
