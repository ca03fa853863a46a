"""XML from strangers: no document types, no entities, nothing external, bounded in depth and number. Small tree out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NoReturn
from xml.parsers import expat

from tandem.model.errors import ArgumentRefused

DEPTH_MAX: Final = 24
ELEMENTS_MAX: Final = 20_000
ATTRIBUTES_MAX: Final = 16

XSI: Final = "http://www.w3.org/2001/XMLSchema-instance"


class XmlRefused(ArgumentRefused):
    """Not well-formed, or asks for something we do not do for strangers. Says where."""


@dataclass(slots=True)
class Element:
    """`name` is the local name; who writes which prefix for which namespace is not our business."""

    name: str
    namespace: str
    attributes: dict[tuple[str, str], str]
    """By (namespace, local name)."""
    children: list[Element] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.parts)

    @property
    def is_nil(self) -> bool:
        return self.attributes.get((XSI, "nil"), "").strip() in ("true", "1")

    @property
    def xsi_type(self) -> str:
        """The local name of `xsi:type`, empty when there is none."""
        return self.attributes.get((XSI, "type"), "").strip().rpartition(":")[2]

    def child(self, name: str) -> Element | None:
        """The only child of that name, None when there is none."""
        found = [c for c in self.children if c.name == name]
        if len(found) > 1:
            raise XmlRefused(f"<{self.name}> contains <{name}> {len(found)} times; once is allowed")
        return found[0] if found else None

    def __iter__(self) -> Iterator[Element]:
        return iter(self.children)


def parse(data: bytes) -> Element:
    """The root element, or XmlRefused."""
    return _Builder().run(data)


class _Builder:
    def __init__(self) -> None:
        self._parser = expat.ParserCreate(namespace_separator="\n")
        self._stack: list[Element] = []
        self._root: Element | None = None
        self._count = 0
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text
        self._parser.StartDoctypeDeclHandler = self._doctype
        self._parser.EntityDeclHandler = self._entity
        self._parser.ExternalEntityRefHandler = self._external

    def run(self, data: bytes) -> Element:
        try:
            self._parser.Parse(data, True)
        except expat.ExpatError as error:
            reason = expat.ErrorString(error.code)
            raise XmlRefused(f"not well-formed XML: {reason} (line {error.lineno}, column {error.offset + 1})") from None
        except (LookupError, UnicodeError, ValueError) as error:
            raise XmlRefused(f"the XML's encoding cannot be read: {error}") from None
        if self._root is None:
            raise XmlRefused("the XML has no element")
        return self._root

    def _where(self) -> str:
        return f"line {self._parser.CurrentLineNumber}, column {self._parser.CurrentColumnNumber + 1}"

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if len(self._stack) >= DEPTH_MAX:
            raise XmlRefused(f"the XML is nested deeper than {DEPTH_MAX} elements ({self._where()})")
        if self._count > ELEMENTS_MAX:
            raise XmlRefused(f"the XML has more than {ELEMENTS_MAX} elements ({self._where()})")
        if len(attributes) > ATTRIBUTES_MAX:
            raise XmlRefused(f"an element has {len(attributes)} attributes; at most {ATTRIBUTES_MAX} are allowed ({self._where()})")
        namespace, local = _split(name)
        element = Element(local, namespace, {_split(key): value for key, value in attributes.items()})
        if self._stack:
            self._stack[-1].children.append(element)
        else:
            self._root = element
        self._stack.append(element)

    def _end(self, name: str) -> None:
        self._stack.pop()

    def _text(self, data: str) -> None:
        if self._stack:
            self._stack[-1].parts.append(data)

    def _doctype(self, *_: object) -> NoReturn:
        raise XmlRefused(f"document types (<!DOCTYPE>) are not accepted ({self._where()})")

    def _entity(self, *_: object) -> NoReturn:
        raise XmlRefused(f"entity declarations are not accepted ({self._where()})")

    def _external(self, *_: object) -> NoReturn:
        raise XmlRefused(f"external entities are not accepted ({self._where()})")


def _split(name: str) -> tuple[str, str]:
    namespace, _, local = name.rpartition("\n")
    return namespace, local
