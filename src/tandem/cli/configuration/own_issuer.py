"""`[issuer]` of a tandem.toml: an issuer of tokens in the broker's own process, which the broker believes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tandem.cli.configuration.documents import Section
from tandem.cli.configuration.setting_types import DAY_MS, MINUTE_MS, SECOND_MS, Duration, Flag, Integer, Name, SettingType, Text
from tandem.cli.configuration.trusted_issuers import is_safe_address, read_grants
from tandem.model.errors import ConfigurationError
from tandem.tokens.trust import TokenGrant

DEFAULT_PORT: Final = 5443


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnIssuer:
    """Clients and signing keys are kept in the broker's data directory, and its certificate is the broker's."""

    port: int = DEFAULT_PORT
    """Where it listens, with TLS only; 0 asks the system for a free one."""
    host: str = ""
    """Where it listens; where the broker does, if it is not said."""
    url: str = ""
    """How clients reach it, if not as `https://localhost:PORT` or under its `host`."""
    tenant: str = "tandem"
    """The tenant that clients name."""
    lifetime_ms: int = 10_800_000
    """How long a token is good."""
    rotate_every_ms: int = 30 * DAY_MS
    """How long one key signs."""
    publish_ahead_ms: int = 3_600_000
    """How long a key is published before it signs; other brokers may believe the issuer too."""
    requests_per_minute: int = 120
    """Allowed to one client, and to one address."""
    service_roles: bool = True
    """As of a `[[trusted_issuer]]`."""
    grants: tuple[TokenGrant, ...] = field(default=())


KEYS: Final[dict[str, tuple[str, SettingType]]] = {
    "port": ("port", Integer(low=0, high=65_535)),
    "host": ("host", Text(chars_max=255, allowed="a host name or address")),
    "url": ("url", Text(chars_max=512, allowed="an https address")),
    "tenant": ("tenant", Name(chars_max=64, plain=True)),
    "lifetime": ("lifetime_ms", Duration(2 * SECOND_MS, DAY_MS)),
    "rotate_every": ("rotate_every_ms", Duration(MINUTE_MS, 3650 * DAY_MS)),
    "publish_ahead": ("publish_ahead_ms", Duration(0, 30 * DAY_MS)),
    "per_minute": ("requests_per_minute", Integer(low=1, high=1_000_000)),
    "service_roles": ("service_roles", Flag()),
}
"""Key in the file -> field of OwnIssuer, and what it may hold."""


def read_own_issuer(root: Section) -> OwnIssuer | None:
    section = root.table("issuer")
    if section is None:
        return None
    values: dict[str, Any] = {}
    for key, (name, kind) in KEYS.items():
        value = section.get(key, kind)
        if value is not None:
            values[name] = value
    if "url" in values and not is_safe_address(values["url"]):
        raise section.refusal("url", values["url"], "an https address")
    values["grants"] = read_grants(section)
    section.finish()
    issuer = OwnIssuer(**values)
    if issuer.publish_ahead_ms > issuer.rotate_every_ms:
        raise ConfigurationError(f"{section.place('publish_ahead')}: must not be longer than rotate_every")
    return issuer
