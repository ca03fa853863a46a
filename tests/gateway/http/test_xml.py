"""XML from strangers cannot bomb us, reach for files or the network, or hide in odd encodings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.gateway.http.xml import DEPTH_MAX, ELEMENTS_MAX, XmlRefused, parse

LAUGHS = b"""<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">
<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;">]><entry>&c;</entry>"""


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (LAUGHS, "document types"),
        (b'<!DOCTYPE x SYSTEM "file:///etc/passwd"><x/>', "document types"),
        (b'<!DOCTYPE x [<!ENTITY e SYSTEM "http://127.0.0.1/">]><x>&e;</x>', "document types"),
        (b'<!DOCTYPE x [<!ENTITY % p SYSTEM "http://127.0.0.1/"> %p;]><x/>', "document types"),
        (b"<x>&undefined;</x>", "undefined entity"),
        (b"<x><y></x>", r"mismatched tag \(line 1, column"),
        (b"", "no element found"),
        (b"not xml", "not well-formed"),
        (b"<x/><y/>", "junk after document element"),
        (b"<x>" * (DEPTH_MAX + 1), f"nested deeper than {DEPTH_MAX}"),
        (b"<x>" + b"<y/>" * ELEMENTS_MAX + b"</x>", f"more than {ELEMENTS_MAX} elements"),
        (b"<x " + b" ".join(b'a%d="1"' % i for i in range(50)) + b"/>", "50 attributes"),
        (b'<x a="1" a="2"/>', "duplicate attribute"),
        (b'<?xml version="1.0" encoding="utf-7"?><x/>', "encoding"),
        (b'<?xml version="1.0" encoding="nonsense"?><x/>', "encoding"),
        (b"<x>\xff\xfe</x>", "not well-formed"),
        (b"<x>\x00</x>", "not well-formed"),
        (b"<p:x/>", "unbound prefix"),
    ],
)
def test_dangerous_or_broken_xml_is_refused_with_the_reason(data: bytes, says: str) -> None:
    with pytest.raises(XmlRefused, match=says):
        parse(data)


def test_good_xml_becomes_a_tree_whatever_its_prefixes_and_encoding() -> None:
    text = (
        '<a:x xmlns:a="urn:n" xmlns:t="http://www.w3.org/2001/XMLSchema-instance" t:type="q:T"><a:y>\u00e4&amp;<![CDATA[<b>]]></a:y></a:x>'
    )
    for data in (text.encode(), b"\xef\xbb\xbf" + text.encode(), text.encode("utf-16")):
        root = parse(data)
        assert (root.name, root.namespace, root.xsi_type) == ("x", "urn:n", "T")
        child = root.child("y")
        assert child is not None and child.text == "\u00e4&<b>"
        assert root.child("z") is None


def test_nil_and_repeated_children_are_noticed() -> None:
    root = parse(b'<x xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><y i:nil="true"/><z/><z/></x>')
    child = root.child("y")
    assert child is not None and child.is_nil
    with pytest.raises(XmlRefused, match="contains <z> 2 times"):
        root.child("z")


@given(st.binary(max_size=200))
def test_no_bytes_do_worse_than_a_refusal(data: bytes) -> None:
    try:
        parse(data)
    except XmlRefused:
        pass


@given(st.text(alphabet="<>/ax:&;!=\"' ", max_size=80))
def test_no_text_that_looks_like_xml_does_worse_than_a_refusal(text: str) -> None:
    try:
        parse(text.encode())
    except XmlRefused:
        pass
