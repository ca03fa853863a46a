"""Tokens of the real SDKs and of nobody: which are believed, for what, and why not."""

from __future__ import annotations

import base64
import hashlib
import hmac
from urllib.parse import quote

import pytest
from azure.servicebus._base_handler import _generate_sas_token  # what the Python SDK really sends
from azure.servicebus._pyamqp.utils import generate_sas_token
from hypothesis import given
from hypothesis import strategies as st

from tandem.model import address
from tandem.model.entity import AuthorizationRule, Right
from tandem.model.errors import AuthenticationFailed
from tandem.server import sas

NOW_MS = 1_700_000_000_000
LATER_S = 1_700_003_600
EVERYTHING = frozenset(Right)


def rule(name: str, *rights: Right, primary: str = "primary+/=", secondary: str = "secondary") -> AuthorizationRule:
    return AuthorizationRule(key_name=name, primary_key=primary, secondary_key=secondary, rights=frozenset(rights))


ROOT = rule("RootManageSharedAccessKey", Right.MANAGE)
RULES = {
    ("", "RootManageSharedAccessKey"): ROOT,
    ("", "listen only"): rule("listen only", Right.LISTEN),
    ("orders", "sender"): rule("sender", Right.SEND, primary="orders-key", secondary=""),
    ("region/orders", "sender"): rule("sender", Right.SEND, Right.LISTEN, primary="regional-key"),
}


def lookup(path: str, name: str) -> AuthorizationRule | None:
    return RULES.get((path, name))


def verify(token: str, audience: address.Address | str, now: int = NOW_MS, skew_ms: int = sas.SKEW_MS) -> sas.Grant:
    return sas.verify(token, audience, lookup, now, skew_ms)


def signed_over(resource_as_written: str, key: str, expiry: int = LATER_S) -> str:
    """The signature, percent-encoded, over a resource exactly as written."""
    digest = hmac.new(key.encode(), f"{resource_as_written}\n{expiry}".encode(), hashlib.sha256).digest()
    return quote(base64.b64encode(digest), safe="")


def test_token_of_the_python_sdk_is_accepted_for_its_entity() -> None:
    token = generate_sas_token("sb://localhost:5672/orders", ROOT.key_name, ROOT.primary_key, LATER_S)
    grant = verify(token, "sb://localhost:5672/orders")
    assert grant == sas.Grant(EVERYTHING, LATER_S * 1000 + sas.SKEW_MS, "orders", ROOT.key_name)


def test_token_of_the_python_sdk_with_its_own_clock_is_accepted() -> None:
    made = _generate_sas_token("sb://localhost/orders", ROOT.key_name, ROOT.primary_key)
    assert verify(made.token, "sb://localhost/orders", now=(made.expires_on - 60) * 1000).rights == EVERYTHING


def test_key_name_encoded_twice_by_the_python_sdk_is_found() -> None:
    token = generate_sas_token("sb://localhost/orders", "listen only", "secondary", LATER_S)
    assert "skn=listen%2Bonly" in token
    assert verify(token, "sb://localhost/orders").rights == {Right.LISTEN}


def test_key_name_encoded_once_or_not_at_all_is_found() -> None:
    for name in ("listen%20only", "listen+only", "listen only"):
        resource = quote("sb://localhost/", safe="")
        token = f"SharedAccessSignature sr={resource}&sig={signed_over(resource, 'secondary')}&se={LATER_S}&skn={name}"
        assert verify(token, "sb://localhost/orders").key_name == "listen only"


def test_token_of_the_javascript_administration_client_is_accepted() -> None:
    """Fields in another order; the whole request address with port and query, in lower case, with lower-case escapes."""
    resource = quote("https://localhost:5300/region%2forders?api-version=2021-05&enrich=true", safe="").lower()
    signature = signed_over(resource, ROOT.primary_key)
    token = f"SharedAccessSignature sig={signature}&se={LATER_S}&skn={ROOT.key_name}&sr={resource}"
    assert verify(token, "https://localhost:5300/Region/Orders").scope == "region/orders"


def test_resource_written_as_bare_host_and_port_covers_the_namespace() -> None:
    resource = "localhost%3A5672"
    token = f"SharedAccessSignature sr={resource}&sig={signed_over(resource, ROOT.secondary_key)}&se={LATER_S}&skn={ROOT.key_name}"
    assert verify(token, "sb://localhost:5672/anything").scope == ""


def test_resource_left_unencoded_is_signed_as_it_stands() -> None:
    resource = "sb://localhost/orders"
    token = f"SharedAccessSignature sr={resource}&sig={signed_over(resource, ROOT.primary_key)}&se={LATER_S}&skn={ROOT.key_name}"
    assert verify(token, "sb://localhost/orders").scope == "orders"


def test_signature_over_a_differently_encoded_resource_is_refused() -> None:
    upper, lower = "sb%3A%2F%2Flocalhost%2Forders", "sb%3a%2f%2flocalhost%2forders"
    token = f"SharedAccessSignature sr={lower}&sig={signed_over(upper, ROOT.primary_key)}&se={LATER_S}&skn={ROOT.key_name}"
    with pytest.raises(AuthenticationFailed, match="InvalidSignature"):
        verify(token, "sb://localhost/orders")


def test_bearer_before_a_ready_made_signature_is_ignored() -> None:
    token = sas.make_token("sb://localhost/", ROOT.key_name, ROOT.primary_key, LATER_S * 1000)
    assert verify("Bearer " + token, "https://localhost/orders").scope == ""


def test_signature_that_was_not_percent_encoded_is_accepted() -> None:
    resource = "sb%3A%2F%2Flocalhost"
    raw = base64.b64encode(hmac.new(b"secondary", f"{resource}\n{LATER_S}".encode(), hashlib.sha256).digest()).decode()
    assert verify(f"SharedAccessSignature sr={resource}&sig={raw}&se={LATER_S}&skn={ROOT.key_name}", "x").key_name == ROOT.key_name


@pytest.mark.parametrize("scheme", ["sb", "amqp", "amqps", "http", "https"])
@pytest.mark.parametrize("host", ["LOCALHOST", "localhost:5671", "localhost."])
def test_scheme_port_and_case_of_the_resource_do_not_matter(scheme: str, host: str) -> None:
    token = sas.make_token(f"{scheme}://{host}/Orders/", ROOT.key_name, ROOT.primary_key, LATER_S * 1000)
    assert verify(token, "sb://localhost/orders/$management").scope == "orders"


def test_both_keys_of_a_rule_are_good() -> None:
    for key in (ROOT.primary_key, ROOT.secondary_key):
        assert verify(sas.make_token("sb://h", ROOT.key_name, key, LATER_S * 1000), "sb://h/q").rights == EVERYTHING


def test_empty_key_signs_nothing() -> None:
    token = sas.make_token("sb://localhost/orders", "sender", "", LATER_S * 1000)
    with pytest.raises(AuthenticationFailed, match="InvalidSignature"):
        verify(token, "sb://localhost/orders")


@pytest.mark.parametrize(
    "audience",
    ["sb://h/orders", "sb://h/ORDERS/", "orders", "orders/$management", "sb://h/orders/$DeadLetterQueue", "sb://h/orders/subscriptions/a"],
)
def test_token_covers_its_resource_and_everything_beneath(audience: str) -> None:
    assert verify(sas.make_token("sb://h/orders", "sender", "orders-key", LATER_S * 1000), audience).rights == {Right.SEND}


@pytest.mark.parametrize("audience", ["sb://h/", "sb://h/orders2", "sb://h/order", "sb://h/other/orders", "invoices"])
def test_token_does_not_cover_its_neighbours(audience: str) -> None:
    with pytest.raises(AuthenticationFailed, match="InvalidAudience"):
        verify(sas.make_token("sb://h/orders", "sender", "orders-key", LATER_S * 1000), audience)


@pytest.mark.parametrize("resource", ["orders/messages", "Orders/Messages/head?timeout=60", "orders/messages/head/"])
def test_token_for_the_url_of_a_request_is_good_for_that_request_alone(resource: str) -> None:
    token = sas.make_token(f"https://h/{resource}", "sender", "orders-key", LATER_S * 1000)
    grant = sas.verify(token, "orders", lookup, NOW_MS, rest="messages/head")
    assert (grant.rights, grant.scope) == ({Right.SEND}, "orders")
    for path, rest in (("orders", ""), ("orders", "other"), ("orders", "messagesque/head"), ("invoices", "messages/head")):
        with pytest.raises(AuthenticationFailed, match="InvalidAudience"):
            sas.verify(token, path, lookup, NOW_MS, rest=rest)


def test_key_of_an_entity_whose_name_looks_like_a_request_does_not_open_what_is_above() -> None:
    token = sas.make_token("https://h/region/orders", "sender", "regional-key", LATER_S * 1000)
    assert verify(token, "region/orders").rights == {Right.SEND, Right.LISTEN}
    with pytest.raises(AuthenticationFailed, match="no authorization rule named 'sender'"):
        sas.verify(token, "region", lookup, NOW_MS, rest="orders")


def test_token_for_another_host_is_refused() -> None:
    with pytest.raises(AuthenticationFailed, match=r"'elsewhere'.*'localhost'"):
        verify(sas.make_token("sb://elsewhere/", ROOT.key_name, ROOT.primary_key, LATER_S * 1000), "sb://localhost/orders")


def test_address_is_as_good_an_audience_as_its_text() -> None:
    token = sas.make_token("sb://h/orders", "sender", "orders-key", LATER_S * 1000)
    assert verify(token, address.parse("amqps://h:5671/Orders/$DeadLetterQueue")).scope == "orders"
    with pytest.raises(AuthenticationFailed):
        verify(token, address.parse("amqps://h:5671/invoices"))


def test_numeric_ipv6_host_keeps_its_colons_and_loses_its_port() -> None:
    token = sas.make_token("sb://[::1]:5672/orders", ROOT.key_name, ROOT.primary_key, LATER_S * 1000)
    assert verify(token, "sb://[::1]/orders").scope == "orders"
    with pytest.raises(AuthenticationFailed, match="InvalidAudience"):
        verify(token, "sb://[::2]/orders")


def test_rule_of_a_parent_signs_for_its_children_but_not_for_the_parent() -> None:
    grant = verify(sas.make_token("sb://h/region/orders/sub", "sender", "regional-key", LATER_S * 1000), "sb://h/region/orders/sub")
    assert grant.rights == {Right.SEND, Right.LISTEN}
    with pytest.raises(AuthenticationFailed, match="no authorization rule named 'sender'"):
        verify(sas.make_token("sb://h/region", "sender", "regional-key", LATER_S * 1000), "sb://h/region")


def test_expired_token_is_refused_once_the_skew_has_passed() -> None:
    token = sas.make_token("sb://h/orders", ROOT.key_name, ROOT.primary_key, NOW_MS)
    assert verify(token, "sb://h/orders", now=NOW_MS + 59_999, skew_ms=60_000).expires_at_ms == NOW_MS + 60_000
    with pytest.raises(
        AuthenticationFailed, match=r"ExpiredToken: The token is expired\. Expiration time: '2[-0-9]+T[:0-9]+Z', 60 seconds ago"
    ):
        verify(token, "sb://h/orders", now=NOW_MS + 60_000, skew_ms=60_000)


def test_moving_the_expiry_breaks_the_signature() -> None:
    token = sas.make_token("sb://h/orders", ROOT.key_name, ROOT.primary_key, NOW_MS)
    with pytest.raises(AuthenticationFailed, match="InvalidSignature"):
        verify(token.replace(f"se={NOW_MS // 1000}", f"se={LATER_S}"), "sb://h/orders")


@pytest.mark.parametrize(
    ("token", "says"),
    [
        ("", "must begin with 'SharedAccessSignature '"),
        ("eyJhbGciOiJSUzI1NiJ9.e30.c2ln", "must begin with 'SharedAccessSignature '"),
        ("SharedAccessSignature", "'sr' is missing"),
        ("SharedAccessSignature sr=sb%3a%2f%2fh&sig=YQ==&se=1700003600", "'skn' is missing"),
        ("SharedAccessSignature sr=sb%3a%2f%2fh&sig=&se=1700003600&skn=k", "'sig' is missing"),
        ("SharedAccessSignature sr=sb%3a%2f%2fh&sr=x&sig=YQ==&se=1&skn=k", "'sr' appears twice"),
        ("SharedAccessSignature sr=sb%3a%2f%2fh&sig=%25&se=1700003600&skn=k", "not base64"),
        ("SharedAccessSignature sr=sb%3a%2f%2fh&sig=é&se=1700003600&skn=k", "not base64"),
        ("SharedAccessSignature sr=sb%3a%2f%2fh&sig=YQ==&se=tomorrow&skn=k", "whole number of seconds"),
        ("SharedAccessSignature sr=sb%3a%2f%2fh&sig=YQ==&se=-5&skn=k", "whole number of seconds"),
        ("SharedAccessSignature sr=sb%3a%2f%2fh&sig=YQ==&se=" + "9" * 5000 + "&skn=k", "whole number of seconds"),
        ("SharedAccessSignature sr=sb%3a%2f%2fh&sig=YQ==&se=٣&skn=k", "whole number of seconds"),
        ("SharedAccessSignature sr=%2forders&sig=YQ==&se=1700003600&skn=k", "names no host"),
        ("SharedAccessSignature sr=" + "x" * 9000, "at most 8192"),
        ("SharedAccessSignature sr=sb%3a%2f%2fh&sig=YQ==&se=1700003600&skn=nobody", "no authorization rule named 'nobody'"),
    ],
)
def test_malformed_token_is_refused_with_the_reason(token: str, says: str) -> None:
    with pytest.raises(AuthenticationFailed, match=says):
        verify(token, "sb://h/orders")


@given(st.text(st.characters(codec=None), max_size=200))
def test_any_text_is_refused_or_believed_and_never_crashes(text: str) -> None:
    for candidate in (text, "SharedAccessSignature " + text, f"SharedAccessSignature sr={text}&sig={text}&se=1700003600&skn={text}"):
        with pytest.raises(AuthenticationFailed):
            verify(candidate, "sb://h/orders")


@given(st.binary(min_size=32, max_size=32))
def test_forged_signature_is_refused(signature: bytes) -> None:
    forged = quote(base64.b64encode(signature), safe="")
    with pytest.raises(AuthenticationFailed, match="InvalidSignature"):
        verify(f"SharedAccessSignature sr=sb%3a%2f%2fh&sig={forged}&se={LATER_S}&skn={ROOT.key_name}", "sb://h/q")


def test_only_the_text_tells_a_signature_from_a_web_token() -> None:
    assert sas.looks_like_sas("SharedAccessSignature sr=x")
    assert sas.looks_like_sas("Bearer sharedaccesssignature sr=x")
    assert not sas.looks_like_sas("eyJhbGciOiJSUzI1NiJ9.e30.c2ln")
    assert not sas.looks_like_sas("")


def test_key_itself_is_good_for_a_plain_login() -> None:
    assert sas.verify_key("RootManageSharedAccessKey", "secondary", lookup).rights == EVERYTHING
    assert sas.verify_key("sender", "orders-key", lookup, "Orders").scope == "orders"
    for name, key, path in (("RootManageSharedAccessKey", "wrong", ""), ("nobody", "secondary", ""), ("sender", "", "orders")):
        with pytest.raises(AuthenticationFailed, match="no key named"):
            sas.verify_key(name, key, lookup, path)


def test_grant_knows_what_it_covers() -> None:
    grant = verify(sas.make_token("sb://h/orders", "sender", "orders-key", LATER_S * 1000), "orders")
    assert grant.allows(Right.SEND) and not grant.allows(Right.LISTEN) and not grant.allows(Right.MANAGE)
    assert grant.covers("Orders/$DeadLetterQueue") and not grant.covers("orders2") and not grant.covers("")
