"""One relay in one namespace: where it is, and what opens it."""

from __future__ import annotations

import ssl
import urllib.parse
from typing import Any, Final

from tandem.client.relay.errors import RelayUnavailableError
from tandem.client.tokens import SAS_TYPE, SasCredential

_ISSUED_SCOPE: Final = "https://servicebus.azure.net/.default"
_PLAIN_PORT: Final = 5672
"""Where a broker listens that says nothing else; with TLS it is the port of HTTPS."""


def host_and_port(text: str) -> tuple[str, str]:
    """Without a port it is empty; an address of IPv6 keeps its brackets."""
    end = text.rfind("]") + 1
    name, _, port = text[end:].partition(":")
    return text[:end] + name, port


class RelayEndpoint:
    """`RelayEndpoint.from_connection_string(text, "relay")`, or by host with any credential that has `get_token`."""

    def __init__(
        self, host: str, relay: str, credential: Any = None, *, tls: bool = True, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        """`host` with its port, if that is not the usual one. Without a credential only senders get in, and only where none is needed."""
        if not host or not relay.strip("/"):
            raise ValueError("a relay endpoint needs a host and the name of a relay")
        self.host = host
        self.relay = relay.strip("/")
        self.credential = credential
        self.tls = tls
        self._ssl_context = ssl_context

    @classmethod
    def from_connection_string(
        cls, connection_string: str, relay: str | None = None, *, ssl_context: ssl.SSLContext | None = None, ca_file: str | None = None
    ) -> RelayEndpoint:
        """`relay` may stand in the connection string as EntityPath. `UseDevelopmentEmulator=true` means no TLS."""
        pairs = (part.partition("=") for part in connection_string.split(";") if part.strip())
        fields = {name.strip().casefold(): value.strip() for name, _, value in pairs}
        name = relay or fields.get("entitypath", "")
        if not name:
            raise ValueError("the relay is named neither here nor as EntityPath in the connection string")
        endpoint = fields.get("endpoint", "")
        host = endpoint.partition("://")[2].strip("/") or endpoint
        plain = fields.get("usedevelopmentemulator", "").casefold() == "true"
        if plain and not host_and_port(host)[1]:
            host = f"{host}:{_PLAIN_PORT}"
        if ca_file is not None and ssl_context is None:
            ssl_context = ssl.create_default_context(cafile=ca_file)
        credential = SasCredential.from_connection_string(connection_string) if "sharedaccesskey" in fields else None
        return cls(host, name, credential, tls=not plain, ssl_context=ssl_context)

    def __str__(self) -> str:
        return f"{self.host}/{self.relay}"

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        if self.tls and self._ssl_context is None:
            self._ssl_context = ssl.create_default_context()
        return self._ssl_context if self.tls else None

    def websocket_uri(self, action: str, path: str = "", query: str = "") -> str:
        return f"{'wss' if self.tls else 'ws'}://{self.host}/$hc{self._path(path)}?{query + '&' if query else ''}sb-hc-action={action}"

    def http_uri(self, path: str = "", query: str = "") -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}{self._path(path)}{'?' + query if query else ''}"

    def _path(self, path: str) -> str:
        tail = path.strip("/") if path in ("", "/") else path.lstrip("/")
        return "/" + urllib.parse.quote(self.relay) + (f"/{tail}" if tail else "")

    async def token(self) -> tuple[str, int] | None:
        """A token that is good for a while yet, and when it expires, in seconds UTC; None without a credential.

        Where there is none to be had, its issuer being down, the endpoint is as good as out of reach: RelayUnavailableError.
        """
        if self.credential is None:
            return None
        signed = getattr(self.credential, "token_type", None) == SAS_TYPE
        scope = f"http://{host_and_port(self.host)[0]}/{self.relay}" if signed else _ISSUED_SCOPE
        try:
            issued = await self.credential.get_token(scope)
        except Exception as error:
            raise RelayUnavailableError(f"no token for {self}: {error or repr(error)}") from error
        return issued.token if signed else f"Bearer {issued.token}", int(issued.expires_on)

    async def headers(self) -> dict[str, str]:
        token = await self.token()
        return {"ServiceBusAuthorization": token[0]} if token is not None else {}
