"""Which tokens are believed, and what is said of the others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tandem.model.errors import AuthenticationFailed
from tandem.tokens.key_set import KeySet, UnusableKeys, parse_key_set
from tandem.tokens.trust import TrustedIssuer, UnknownKey
from tandem.tokens.verification import Claims, looks_like_jwt, read_unverified, verify
from tests.tokens import minting
from tests.tokens.minting import ISSUER, OWNER, claims, ec_key, jwk, key_set, rsa_key, signed, tampered

NOW = 1_800_000_000
TRUST = TrustedIssuer(issuer=ISSUER)


def believed(token: str, keys: KeySet | None = None, trust: TrustedIssuer = TRUST, now: float = NOW) -> Claims:
    return verify(read_unverified(token), trust, keys or parse_key_set(minting.usual_keys()), int(now * 1000))


@pytest.mark.parametrize(("key", "key_id"), [(rsa_key(), "rsa-1"), (ec_key(), "ec-1"), (rsa_key(), None)], ids=["RS256", "ES256", "no kid"])
def test_a_token_of_the_trusted_issuer_is_believed(key: Any, key_id: str | None) -> None:
    said = believed(signed(claims(NOW, azp="client-7", groups=["ops"], scp="Send Listen"), key, key_id))
    assert (said.subject, said.names) == ("shop", {"shop", "client-7"})
    assert (said.roles, said.groups, said.scopes) == ({OWNER}, {"ops"}, {"Send", "Listen"})
    assert said.expires_at_ms == (NOW + 3600) * 1000


WRONG: dict[str, tuple[str, str]] = {
    "expired": (signed(claims(NOW - 3601)), "ExpiredToken"),
    "expired this very second": (signed(claims(NOW - 3600)), "ExpiredToken"),
    "no end": (signed(claims(NOW, exp=None)), "MalformedToken"),
    "end is no number": (signed(claims(NOW, exp="soon")), "MalformedToken"),
    "not yet valid": (signed(claims(NOW, nbf=NOW + 31)), "TokenNotYetValid"),
    "issued in the future": (signed(claims(NOW, iat=NOW + 31)), "TokenNotYetValid"),
    "other audience": (signed(claims(NOW, aud="https://vault.azure.net")), "InvalidAudience"),
    "no audience": (signed(claims(NOW, aud=None)), "InvalidAudience"),
    "other issuer": (signed(claims(NOW, iss="https://elsewhere.test/")), "InvalidIssuer"),
    "other key": (signed(claims(NOW), rsa_key("stranger")), "InvalidSignature"),
    "key of the other algorithm": (signed(claims(NOW), ec_key("stranger"), "rsa-1"), "InvalidSignature"),
    "unknown kid": (signed(claims(NOW), rsa_key("stranger"), "rsa-9"), "UnknownKey"),
    "none": (minting.unsigned(claims(NOW)), "AlgorithmNotAllowed"),
    "HS256 with the RSA key": (minting.signed_with_the_public_key(claims(NOW)), "AlgorithmNotAllowed"),
    "tampered": (tampered(signed(claims(NOW)), sub="admin"), "InvalidSignature"),
    "without signature": (signed(claims(NOW)).rpartition(".")[0] + ".", "InvalidSignature"),
    "nobody's": (signed(claims(NOW, sub=None)), "MalformedToken"),
    "two parts": (signed(claims(NOW)).rpartition(".")[0], "MalformedToken"),
    "too long": (signed(claims(NOW, groups=["g" * 100] * 700)), "MalformedToken: the token has"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_token_is_refused_with_what_is_wrong(name: str) -> None:
    token, words = WRONG[name]
    with pytest.raises(AuthenticationFailed, match=words) as refusal:
        believed(token)
    assert not any(part in refusal.value.description for part in token.split(".") if len(part) > 10), "the token itself is never shown"
    assert isinstance(refusal.value, UnknownKey) == (name == "unknown kid")


def test_a_clock_that_is_a_little_ahead_is_forgiven_but_the_end_is_the_end() -> None:
    assert believed(signed(claims(NOW, nbf=NOW + 29, iat=NOW + 29)))
    assert believed(signed(claims(NOW)), now=NOW + 3599.9)
    with pytest.raises(AuthenticationFailed, match="ExpiredToken"):
        believed(signed(claims(NOW)), now=NOW + 3600)


@pytest.mark.parametrize("audience", ["https://servicebus.azure.net", ["other", "https://servicebus.azure.net/"]])
def test_an_audience_may_stand_among_others_and_lack_its_last_slash(audience: object) -> None:
    assert believed(signed(claims(NOW, aud=audience)))


def test_an_algorithm_that_was_not_allowed_is_refused_even_with_the_right_key() -> None:
    only_rsa = TrustedIssuer(issuer=ISSUER, algorithms=("RS256",))
    with pytest.raises(AuthenticationFailed, match="AlgorithmNotAllowed: the token says 'ES256'; allowed is RS256"):
        believed(signed(claims(NOW), ec_key(), "ec-1"), trust=only_rsa)


def test_the_tokens_of_a_revoked_client_are_refused_and_later_ones_are_not() -> None:
    keys = parse_key_set(key_set(jwk(rsa_key(), "rsa-1"), tandem_revoked={"shop": NOW + 10, "odd": "x"}))
    with pytest.raises(AuthenticationFailed, match="RevokedClient: the tokens of 'shop'"):
        believed(signed(claims(NOW)), keys)
    assert believed(signed(claims(NOW + 10)), keys, now=NOW + 10)


def test_strange_names_reach_no_log_as_they_are() -> None:
    with pytest.raises(AuthenticationFailed) as refusal:
        believed(signed(claims(NOW, iss="x\n2026 fake line'" + "y" * 500)))
    assert "\n" not in refusal.value.description
    assert len(refusal.value.description) < 200


def test_keys_that_cannot_check_our_signatures_are_left_out() -> None:
    short = jwk(rsa_key("short", 1024), "short")
    for_encryption = {**jwk(rsa_key(), "enc"), "use": "enc"}
    shared = {"kty": "oct", "k": "c2VjcmV0", "kid": "shared", "alg": "HS256"}
    other_algorithm = {**jwk(rsa_key(), "pss"), "alg": "PS256"}
    good = jwk(rsa_key(), "good")
    found = parse_key_set(key_set(short, for_encryption, shared, other_algorithm, good))
    assert [key.key_id for key in found.keys] == ["good"]
    with pytest.raises(UnusableKeys, match="no key for RS256 or ES256"):
        parse_key_set(key_set(short, shared))


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b'{"keys": 3}', b"[" * 100_000, b" " * 300_000])
def test_what_is_no_key_set_is_refused(document: bytes) -> None:
    with pytest.raises(UnusableKeys):
        parse_key_set(document)


def test_a_signature_is_told_from_a_token_by_its_text() -> None:
    assert looks_like_jwt(signed(claims(NOW))) and looks_like_jwt("Bearer " + signed(claims(NOW)))
    assert not looks_like_jwt("SharedAccessSignature sr=a&sig=b&se=1&skn=c")
    assert json.loads(minting.usual_keys())["keys"][0]["kid"] == "rsa-1"
