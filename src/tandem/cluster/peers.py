"""How nodes know each other: what every node is told about its cluster, and what is said when one connects to another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tandem.amqp.config import ConnectionConfig
from tandem.amqp.sasl import NONCE_BYTES, SaslClient, SaslServer
from tandem.amqp.types import Symbol
from tandem.cluster.ownership import Ownership
from tandem.model.limits import Limits

PEER_VERSION: Final = 1
"""Of what nodes say to each other. Raised when that changes; a node speaks with those of its own version and the one before."""
VERSION_PROPERTY: Final = "com.tandem:peer-version"
NODE_PROPERTY: Final = "com.tandem:node"
RIGHTS_PROPERTY: Final = "com.tandem:rights"
"""Of a carried link to a management node: what the client may do there."""
PART_PROPERTY: Final = "com.tandem:part"
"""Of a receiver: it gets what this node has of a partitioned entity, and is told when there is something."""
SECRET_BYTES_MIN: Final = 16
_WINDOW: Final = 2_048
"""Transfer frames that a session between nodes takes ahead of its client."""
_IDLE_MS: Final = 10_000
_CHANNELS_MAX: Final = 65_535
"""A client has its limit where it connects; continued, it needs a session for its transactions besides."""
_FIRST_DELIVERY_ID: Final = 0x40000000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """One node of a cluster."""

    node: str
    """Its name, unique in the cluster."""
    listen: str
    """Where it listens for its peers: `host:port` or `unix:/path`."""
    secret: bytes
    """What all nodes know, and nobody else."""
    ownership: Callable[[str], Ownership]
    """By the name of a namespace: who has its stores."""
    administrator: str = ""
    """The node that alone changes metadata, and answers HTTP for all; empty: every node does both."""
    others: tuple[str, ...] = ()
    """The names of the other nodes, where they are known beforehand."""
    http: str = ""
    """Path of the unix socket where the administrator takes over HTTP connections that came to other nodes."""

    moving: str = ""
    """Directory of the unix sockets where each node takes over connections of its clients; empty: connections stay where they are."""
    broker: str = ""
    """The name under which clients know all nodes; empty: each has its own."""

    @property
    def administers(self) -> bool:
        return not self.administrator or self.administrator == self.node

    def config_to(self, namespace: str, limits: Limits, entropy: Callable[[int], bytes]) -> ConnectionConfig:
        """To speak with another node, for one client of this namespace."""
        return ConnectionConfig(
            container_id=f"tandem-{self.node}",
            hostname=namespace,
            max_frame_size=limits.frame_bytes_max,
            handle_max=limits.links_per_session_max,
            idle_timeout_ms=_IDLE_MS,
            incoming_window=_WINDOW,
            message_bytes_ceiling=2 * limits.message_bytes_ceiling,  # messages in answers have something around them
            sasl=SaslClient(secret=self.secret, nonce=entropy(NONCE_BYTES)),
            properties=self._properties(),
        )

    def config_from(self, limits: Limits, entropy: Callable[[int], bytes]) -> ConnectionConfig:
        """To be spoken to."""
        return ConnectionConfig(
            container_id=f"tandem-{self.node}",
            max_frame_size=limits.frame_bytes_max,
            channel_max=_CHANNELS_MAX,
            handle_max=limits.links_per_session_max,
            idle_timeout_ms=_IDLE_MS,
            message_bytes_ceiling=limits.message_bytes_ceiling,
            sasl=SaslServer(secret=self.secret, nonce=entropy(NONCE_BYTES)),
            sasl_required=True,
            next_outgoing_id=_FIRST_DELIVERY_ID,
            properties=self._properties(),
        )

    def _properties(self) -> dict[object, object]:
        return {Symbol(VERSION_PROPERTY): PEER_VERSION, Symbol(NODE_PROPERTY): self.node}


def unfit_version(properties: dict[object, object]) -> str:
    """Why a peer that says this of itself cannot be spoken with; empty if it can."""
    version = properties.get(VERSION_PROPERTY)
    if isinstance(version, int) and PEER_VERSION - 1 <= version <= PEER_VERSION + 1:
        return ""  # a newer one knows ours as the one before its own
    node = properties.get(NODE_PROPERTY)
    return (
        f"node '{node}' speaks version {version} between nodes, this one {PEER_VERSION}: "
        "upgrade one node after the other, and none past the next version"
    )
