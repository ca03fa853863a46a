"""Shared access signatures: who signed a token, for what, until when; no clock, no files, no state.

A token is `SharedAccessSignature sr=<resource>&sig=<signature>&se=<expiry>&skn=<key name>`, fields in any order. Clients differ in how
they percent-encode it, so the signature is checked over `sr` exactly as it stands in the token and never over a re-encoded one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, unquote_plus

from tandem.model.address import Address
from tandem.model.entity import AuthorizationRule, Right
from tandem.model.errors import AuthenticationFailed, expired_token
from tandem.model.sas_token import make_token, sign

if TYPE_CHECKING:
    from tandem.tokens.verification import Claims

__all__ = ["Grant", "Grants", "RuleLookup", "SasToken", "beneath", "looks_like_sas", "make_token", "parse", "verify", "verify_key"]

RuleLookup = Callable[[str, str], AuthorizationRule | None]
"""(path, key name) -> the rule of that name on exactly that path; path is casefolded, `""` is the namespace itself."""

SKEW_MS: Final = 90_000
"""Clocks differ a little, and administration clients refresh a token up to a minute after it expired."""

TOKEN_CHARS_MAX: Final = 8_192
_PATH_CHARS_MAX: Final = 1_024
_EXPIRY_DIGITS_MAX: Final = 12
_PREFIX: Final = "sharedaccesssignature"
_FIELDS: Final = ("sr", "sig", "se", "skn")
_EVERYTHING: Final = frozenset(Right)
_NOBODYS_KEY: Final = "a key that no rule has"


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token is good for."""

    rights: frozenset[Right]
    """Manage brings Send and Listen with it."""
    expires_at_ms: int
    """The instant from which it is honoured no longer, skew included."""
    scope: str
    """Casefolded path: this entity and everything beneath it; `""` is the whole namespace."""
    key_name: str
    """Of a self-signed token; of an issued one, its issuer and its holder."""
    holder: Claims | None = None
    """What an issued token said of its holder."""

    def allows(self, right: Right) -> bool:
        return right in self.rights

    def covers(self, path: str) -> bool:
        return beneath(path.strip("/").casefold(), self.scope)


class Grants:
    """What one connection may do: the grants of its tokens, found by the path they are needed for, however many there are."""

    def __init__(self) -> None:
        self._by_scope: dict[str, dict[str, Grant]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, grant: Grant) -> None:
        """It replaces an older one of the same key for the same scope."""
        named = self._by_scope.setdefault(grant.scope, {})
        self._count += grant.key_name not in named
        named[grant.key_name] = grant

    def clear(self) -> None:
        self._by_scope.clear()
        self._count = 0

    def drop_expired(self, now: int) -> None:
        self.drop(lambda grant: grant.expires_at_ms <= now)

    def drop(self, unwanted: Callable[[Grant], bool]) -> int:
        """Those of which `unwanted` says so; how many they were."""
        before = self._count
        for scope, named in list(self._by_scope.items()):
            for grant in list(named.values()):
                if unwanted(grant):
                    del named[grant.key_name]
                    self._count -= 1
            if not named:
                del self._by_scope[scope]
        return before - self._count

    def covering(self, path: str) -> Iterator[Grant]:
        """Every grant whose scope is this path or lies above it."""
        for scope in _upward(path.strip("/").casefold()):
            yield from self._by_scope.get(scope, {}).values()

    def next_expiry(self) -> int:
        """When the first of them ends; 0 without any."""
        return min((grant.expires_at_ms for named in self._by_scope.values() for grant in named.values()), default=0)


@dataclass(frozen=True, slots=True)
class SasToken:
    """A token taken apart, not yet believed."""

    signed: bytes
    signature: bytes
    host: str
    path: str
    expires_at_ms: int
    key_names: tuple[str, ...]
    """How the key name reads with one and with two rounds of decoding: some clients encode it twice."""


def looks_like_sas(text: str) -> bool:
    """SAS and JWT arrive under the same token type; only the text tells them apart."""
    return _without_bearer(text)[: len(_PREFIX)].casefold() == _PREFIX


def parse(text: str) -> SasToken:
    """Take a token apart; raises AuthenticationFailed with what is malformed."""
    if len(text) > TOKEN_CHARS_MAX:
        raise AuthenticationFailed(f"The token has {len(text)} characters; at most {TOKEN_CHARS_MAX} are allowed.")
    scheme, _, rest = _without_bearer(text).partition(" ")
    if scheme.casefold() != _PREFIX:
        raise AuthenticationFailed("The token is not a shared access signature: it must begin with 'SharedAccessSignature '.")
    fields = _fields(rest)
    try:
        signature = base64.b64decode(unquote(fields["sig"]), validate=True)
    except (binascii.Error, ValueError):
        raise AuthenticationFailed("MalformedToken: the signature ('sig') is not base64.") from None
    expiry = unquote(fields["se"])
    if not (expiry.isascii() and expiry.isdigit() and len(expiry) <= _EXPIRY_DIGITS_MAX):
        raise AuthenticationFailed("MalformedToken: the expiry ('se') must be a whole number of seconds since 1970-01-01 UTC.")
    host, path = _resource(unquote_plus(fields["sr"]))
    if not host:
        raise AuthenticationFailed("MalformedToken: the resource ('sr') names no host.")
    signed = f"{fields['sr']}\n{fields['se']}".encode(errors="surrogatepass")
    return SasToken(signed, signature, host, path, int(expiry) * 1000, _key_names(fields["skn"]))


def verify(token: str, audience: Address | str, rules: RuleLookup, now: int, skew_ms: int = SKEW_MS, rest: str = "") -> Grant:
    """What `token` allows on `audience`, or AuthenticationFailed saying what is wrong with it.

    The rule may sit on the token's resource or on anything above it; the audience must be that resource or lie beneath it.
    Scheme, port, case, query and trailing slashes do not matter on either side. An audience without a host (a bare path) fits any host.
    `rest` is how the path of a request goes on after the audience: a token made for the request's own URL is good for it, if it was
    signed with a key of the audience or of what is above.
    """
    parsed = parse(token)
    host, path = _audience(audience)
    if rest and not beneath(path, parsed.path) and beneath(f"{path}/{rest.casefold()}", parsed.path):
        parsed = replace(parsed, path=path)
    rule = _signer(parsed, rules)
    expires_at_ms = parsed.expires_at_ms + skew_ms
    if now >= expires_at_ms:
        raise expired_token(parsed.expires_at_ms, now)
    if host and host != parsed.host:
        raise AuthenticationFailed(f"InvalidAudience: the token was made for host '{parsed.host}', not for '{host}'.")
    if not beneath(path, parsed.path):
        raise AuthenticationFailed(f"InvalidAudience: the token was made for '{parsed.path}', which does not cover '{path}'.")
    return Grant(_rights(rule), expires_at_ms, parsed.path, rule.key_name)


def verify_key(key_name: str, key: str, rules: RuleLookup, path: str = "") -> Grant:
    """SASL PLAIN: the key itself instead of a signature. Good for as long as the connection lasts."""
    folded = path.strip("/").casefold()
    given = key.encode(errors="surrogatepass")
    found: AuthorizationRule | None = None
    for place in _upward(folded):
        rule = rules(place, key_name)
        for secret in _secrets(rule) if rule is not None else (_NOBODYS_KEY,):
            # Digests have one length, so the comparison takes the same time for every guess.
            same = hmac.compare_digest(hashlib.sha256(secret.encode()).digest(), hashlib.sha256(given).digest())
            if same and rule is not None and found is None:
                found = rule
    if found is None:
        raise AuthenticationFailed(f"There is no key named '{key_name}' with this value.")
    return Grant(_rights(found), 2**63 - 1, folded, found.key_name)


def _without_bearer(text: str) -> str:
    """The administration client puts `Bearer ` before a ready-made signature."""
    text = text.strip()
    return text[7:].lstrip() if text[:7].casefold() == "bearer " else text


def _fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in text.strip().split("&"):
        name, separator, value = part.partition("=")
        name = name.strip().casefold()
        if name not in _FIELDS:
            continue
        if name in fields:
            raise AuthenticationFailed(f"MalformedToken: the field '{name}' appears twice.")
        if separator and value:
            fields[name] = value
    missing = [name for name in _FIELDS if name not in fields]
    if missing:
        raise AuthenticationFailed(f"MalformedToken: the field '{missing[0]}' is missing; sr, sig, se and skn are all needed.")
    return fields


def _key_names(text: str) -> tuple[str, ...]:
    names: list[str] = []
    for decode in (unquote_plus, unquote):
        once = decode(text)
        for name in (once, decode(once)):
            if name not in names:
                names.append(name)
    return tuple(names)


def _resource(uri: str) -> tuple[str, str]:
    """Host and path of a resource; without a scheme it begins with the host all the same."""
    scheme = uri.find("://")
    host, _, path = (uri[scheme + 3 :] if scheme >= 0 else uri).partition("/")
    return _fold_host(host), _fold_path(path)


def _audience(audience: Address | str) -> tuple[str, str]:
    if isinstance(audience, Address):
        return _fold_host(audience.host), audience.path.strip("/").casefold()
    if "://" in audience:
        return _resource(audience)
    return "", audience.strip("/").casefold()


def _fold_host(host: str) -> str:
    host = host.partition("?")[0]
    if host.startswith("["):
        return host.partition("]")[0][1:].casefold()
    return host.partition(":")[0].rstrip(".").casefold()


def _fold_path(path: str) -> str:
    return unquote(path.partition("?")[0]).strip("/").casefold()


def beneath(path: str, scope: str) -> bool:
    """Both casefolded; a scope covers itself and everything beneath it, `""` the whole namespace."""
    return not scope or path == scope or path.startswith(scope + "/")


def _upward(path: str) -> Iterator[str]:
    """`a/b/c`, `a/b`, `a`, and the namespace; of a path longer than any entity's only the namespace."""
    while path and len(path) <= _PATH_CHARS_MAX:
        yield path
        path = path.rpartition("/")[0]
    yield ""


def _secrets(rule: AuthorizationRule) -> list[str]:
    """An unset key signs nothing."""
    return [key for key in (rule.primary_key, rule.secondary_key) if key]


def _signer(token: SasToken, rules: RuleLookup) -> AuthorizationRule:
    known = False
    for name in token.key_names:
        for place in _upward(token.path):
            rule = rules(place, name)
            if rule is None:
                continue
            known = True
            signed_by = [hmac.compare_digest(sign(key, token.signed), token.signature) for key in _secrets(rule)]
            if any(signed_by):
                return rule
    if known:
        raise AuthenticationFailed("InvalidSignature: the token was signed with another key, or changed after it was signed.")
    # An unknown name costs what a wrong key costs, so that nobody learns names from the time it takes.
    hmac.compare_digest(sign(_NOBODYS_KEY, token.signed), token.signature)
    raise AuthenticationFailed(f"There is no authorization rule named '{token.key_names[0]}' on '{token.path}' or above it.")


def _rights(rule: AuthorizationRule) -> frozenset[Right]:
    return _EVERYTHING if Right.MANAGE in rule.rights else rule.rights
