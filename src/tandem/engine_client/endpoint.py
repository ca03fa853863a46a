"""Where a namespace is, and how reaching it fails: what a command knows of the engine before it needs one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_TLS_PORT: Final = 5671
_PLAIN_PORT: Final = 5672


class TransportError(Exception):
    """The connection, a link or a request failed. `condition` is the AMQP condition, or a word of ours for the socket."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a namespace is and with which key."""

    host: str
    port: int
    tls: bool
    key_name: str = ""
    key: str = ""
    token: str = ""
    ca_file: str | None = None
    claims: bool = True
    """The broker wants a token for each entity; else name and key are those of SASL PLAIN, and good for everything."""

    @classmethod
    def parse(cls, connection_string: str, ca_file: str | None = None) -> Endpoint:
        """Reads what the official clients read. Raises ValueError naming the missing part."""
        parts: dict[str, str] = {}
        for item in connection_string.strip().strip(";").split(";"):
            name, sign, value = item.partition("=")
            if not sign:
                raise ValueError(f"connection string: {item!r} is not of the form Name=value")
            parts[name.strip().casefold()] = value.strip()
        address = parts.get("endpoint") or parts.get("hostname")
        if not address:
            raise ValueError("connection string: Endpoint=sb://… is missing")
        host = address.partition("://")[2] or address
        host = host.strip("/")
        name, port = _host_and_port(host)
        plain = parts.get("usedevelopmentemulator", "") == "true"
        token = parts.get("sharedaccesssignature", "")
        if not token and not (parts.get("sharedaccesskeyname") and parts.get("sharedaccesskey")):
            raise ValueError("connection string: SharedAccessKeyName and SharedAccessKey, or SharedAccessSignature, are missing")
        return cls(
            host=name,
            port=port or (_PLAIN_PORT if plain else _TLS_PORT),
            tls=not plain,
            key_name=parts.get("sharedaccesskeyname", ""),
            key=parts.get("sharedaccesskey", ""),
            token=token,
            ca_file=ca_file,
        )

    @property
    def place(self) -> str:
        """As URLs have it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _host_and_port(text: str) -> tuple[str, int]:
    """0: the usual one. An address of IPv6 stands in brackets."""
    numeric, bracket, rest = text[1:].partition("]") if text.startswith("[") else ("", "", "")
    name, _, port = (numeric, "", rest.removeprefix(":")) if bracket else text.partition(":")
    if not name or (port and not (port.isdecimal() and int(port) < 65_536)):
        raise ValueError(f"connection string: found '{text}' as host and port; allowed is host, host:port or [address of IPv6]:port")
    return name, int(port or 0)
