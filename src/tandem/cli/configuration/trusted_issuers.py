"""`[[trusted_issuer]]` of a tandem.toml: whose tokens a broker accepts, and what their holders may do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from tandem.cli.configuration.documents import Section
from tandem.cli.configuration.setting_types import DAY_MS, MINUTE_MS, Choice, Duration, File, Flag, Many, Name, SettingType, Text
from tandem.model.entity import Right
from tandem.model.errors import ConfigurationError
from tandem.tokens.trust import ALGORITHMS, TokenGrant, TrustedIssuer

_ADDRESS: Final = Text(chars_max=1_024, allowed="an https address; http only to this machine")

KEYS: Final[dict[str, tuple[str, SettingType]]] = {
    "issuer": ("issuer", Text(chars_max=512, allowed="the text that its tokens have as `iss`")),
    "jwks_url": ("jwks_url", _ADDRESS),
    "jwks_file": ("jwks_file", File()),
    "ca": ("ca", File()),
    "audiences": ("audiences", Many(Text(chars_max=512), least=1)),
    "algorithms": ("algorithms", Many(Choice(ALGORITHMS), least=1)),
    "leeway": ("leeway_ms", Duration(0, 5 * MINUTE_MS)),
    "refresh": ("refresh_ms", Duration(1_000, DAY_MS)),
    "refetch_min": ("refetch_min_ms", Duration(0, DAY_MS)),
    "service_roles": ("service_roles", Flag()),
}
"""Key in the file -> field of TrustedIssuer, and what it may hold."""
GRANT_KEYS: Final[dict[str, SettingType]] = {
    "subject": Text(chars_max=512),
    "group": Text(chars_max=512),
    "role": Text(chars_max=512),
    "rights": Many(Choice(tuple(right.value for right in Right), Right), least=1),
    "entities": Many(Name(), least=1),
    "namespace": Name(chars_max=50, plain=True),
}


def read_trusted_issuers(root: Section, directory: Path) -> tuple[TrustedIssuer, ...]:
    """Paths are relative to `directory`."""
    issuers: list[TrustedIssuer] = []
    for section in root.tables("trusted_issuer"):
        issuer = _issuer(section, directory)
        if any(other.issuer == issuer.issuer for other in issuers):
            raise ConfigurationError(f"{section.place('issuer')}: this issuer is trusted already")
        issuers.append(issuer)
    return tuple(issuers)


def _issuer(section: Section, directory: Path) -> TrustedIssuer:
    section.need("issuer", KEYS["issuer"][1])
    values: dict[str, Any] = {}
    for key, (field, kind) in KEYS.items():
        value = section.get(key, kind)
        if value is not None:
            values[field] = directory / value.expanduser() if isinstance(value, Path) else value
    if ("jwks_url" in values) == ("jwks_file" in values):
        raise ConfigurationError(f"{section.place()}: needs its keys from one place: jwks_url or jwks_file")
    if "jwks_url" in values and not is_safe_address(values["jwks_url"]):
        raise section.refusal("jwks_url", values["jwks_url"], _ADDRESS.allowed)
    for name in ("ca", "jwks_file"):
        if name in values and not values[name].is_file():
            raise ConfigurationError(f"{section.place(name)}: {values[name]} is not a file")
    values["grants"] = read_grants(section)
    section.finish()
    return TrustedIssuer(**values)


def read_grants(section: Section) -> tuple[TokenGrant, ...]:
    return tuple(_grant(grant) for grant in section.tables("grant"))


def is_safe_address(address: str) -> bool:
    """Whoever can answer in the issuer's place can sign every token: keys do not travel unprotected."""
    parts = urlsplit(address)
    here = parts.hostname in ("127.0.0.1", "::1", "localhost")
    return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and here))


def _grant(section: Section) -> TokenGrant:
    said = {key: value for key, kind in GRANT_KEYS.items() if (value := section.get(key, kind)) is not None}
    section.finish()
    if sum(key in said for key in ("subject", "group", "role")) != 1:
        raise ConfigurationError(f"{section.place()}: needs exactly one of subject, group and role")
    rights = frozenset(cast("tuple[Right, ...]", section.need("rights", GRANT_KEYS["rights"])))
    return TokenGrant(**cast(Any, {**said, "rights": rights}))
