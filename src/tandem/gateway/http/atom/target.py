"""What an administration address means: an entity, a subscription, a rule, a listing, or the namespace."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tandem.model.errors import ArgumentOutOfRange, ArgumentRefused, EntityNotFound
from tandem.server.administration_port import Page

PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 1_000

_FILTER: Final = re.compile(r"\s*startswith\s*\(\s*path\s*,\s*'((?:[^']|'')*)'\s*\)\s+eq\s+true\s*", re.IGNORECASE)


class Kind(enum.Enum):
    NAMESPACE = "namespace"
    QUEUES = "queues"
    TOPICS = "topics"
    RELAYS = "relays"
    ENTITY = "entity"
    SUBSCRIPTIONS = "subscriptions"
    SUBSCRIPTION = "subscription"
    RULES = "rules"
    RULE = "rule"


@dataclass(frozen=True, slots=True)
class AtomTarget:
    kind: Kind
    entity: str = ""
    subscription: str = ""
    rule: str = ""

    @property
    def scope(self) -> str:
        """The path that a token must cover."""
        if self.subscription:
            return f"{self.entity}/Subscriptions/{self.subscription}"
        return self.entity


def read_target(segments: tuple[str, ...], query: Mapping[str, str]) -> AtomTarget:
    """Slashes inside names may come encoded or not. Raises EntityNotFound for `$` addresses that nobody serves."""
    folded = [segment.casefold() for segment in segments]
    if folded[0].startswith("$"):
        return _reserved(segments, folded)
    # JavaScript lists at `…/Subscriptions/`. Python arrives there with an empty name, and then says `enrich`.
    if folded[-1] == "" and len(folded) > 1 and folded[-2] in ("subscriptions", "rules") and _lists(query):
        segments, folded = segments[:-1], folded[:-1]
    if len(folded) >= 5 and folded[-2] == "rules" and folded[-4] == "subscriptions":
        return AtomTarget(Kind.RULE, _joined(segments[:-4]), segments[-3], segments[-1])
    if len(folded) >= 4 and folded[-1] == "rules" and folded[-3] == "subscriptions":
        return AtomTarget(Kind.RULES, _joined(segments[:-3]), segments[-2])
    if len(folded) >= 3 and folded[-2] == "subscriptions":
        return AtomTarget(Kind.SUBSCRIPTION, _joined(segments[:-2]), segments[-1])
    if len(folded) >= 2 and folded[-1] == "subscriptions":
        return AtomTarget(Kind.SUBSCRIPTIONS, _joined(segments[:-1]))
    return AtomTarget(Kind.ENTITY, _joined(segments))


def _reserved(segments: tuple[str, ...], folded: list[str]) -> AtomTarget:
    if folded == ["$namespaceinfo"]:
        return AtomTarget(Kind.NAMESPACE)
    if folded[0] == "$resources" and len([f for f in folded[1:] if f]) == 1:
        if folded[1] == "queues":
            return AtomTarget(Kind.QUEUES)
        if folded[1] == "topics":
            return AtomTarget(Kind.TOPICS)
        if folded[1] in ("hybridconnections", "relays"):
            return AtomTarget(Kind.RELAYS)
    raise EntityNotFound(f"nothing is served at '/{_joined(segments)[:80]}'; names do not start with '$'")


def _joined(segments: tuple[str, ...]) -> str:
    return "/".join(segments)


def _lists(query: Mapping[str, str]) -> bool:
    return "$skip" in query or "$top" in query or "enrich" not in query


def read_page(query: Mapping[str, str]) -> Page:
    skip, top = _number(query, "$skip", 0, 0), _number(query, "$top", PAGE_DEFAULT, 1)
    return Page(skip=skip, top=min(top, PAGE_MAX), prefix=_prefix(query.get("$filter", "")))


def _number(query: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = query.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9) or int(text) < least:
        raise ArgumentOutOfRange(f"{name} is '{text[:40]}'; a whole number of at least {least} is needed")
    return int(text)


def _prefix(text: str) -> str:
    if not text.strip():
        return ""
    match = _FILTER.fullmatch(text)
    if match is None:
        raise ArgumentRefused(f"$filter is \"{text[:100]}\"; supported is startswith(path,'prefix') eq true")
    return match[1].replace("''", "'")
