"""A carried link that may come to nothing: a session of another node is tried for. Compiled, as what it extends is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tandem.gateway.amqp.carrying import CarriedConnection, CarriedReceiving
from tandem.model.errors import OperationTimeout

if TYPE_CHECKING:
    from tandem.amqp.errors import AmqpError
    from tandem.amqp.link import Link, SenderLink
    from tandem.gateway.amqp.connection import PeerConnection
    from tandem.model.address import Address
    from tandem.model.entity import Right


class CarriedTrial(CarriedReceiving):
    """A session of another node, if there is one."""

    def __init__(self, client: PeerConnection, carried: CarriedConnection, address: Address, right: Right, near: SenderLink) -> None:
        super().__init__(client, carried, address, right, near)
        self.had: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def _tell(self, had: bool) -> None:
        if not self.had.done():
            self.had.set_result(had)

    def on_attached(self, link: Link) -> None:
        super().on_attached(link)
        self._tell(True)

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        late = error is None or error.condition == OperationTimeout.condition or self.carried.engine.broken
        if link is self.near or self.had.done() or not late:
            super().on_detach(link, error)
        self._tell(not late)
