"""Transactions as another AMQP stack speaks them: Apache Qpid Proton."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tandem.testing import Bus

proton = pytest.importorskip("proton", reason="MISSING: python-qpid-proton, which needs a C compiler; pip install python-qpid-proton")
handlers = pytest.importorskip("proton.handlers")
reactor = pytest.importorskip("proton.reactor")

SECONDS = 20


@pytest.fixture
def bus() -> Iterator[Bus]:
    with Bus(store_count=3, real_time=True) as bus:
        for name in ("in", "out", "log"):
            bus.create_queue(name)
        yield bus


def test_proton_moves_messages_in_transactions_and_aborts_one(bus: Bus) -> None:
    """Receives from `in`, sends on to `out` and `log` in one transaction each; every second transaction is aborted."""

    class Mover(handlers.MessagingHandler, handlers.TransactionHandler):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(prefetch=0, auto_accept=False)
            self.log: list[str] = []
            self.delivery: Any = None
            self.aborting = False

        def on_start(self, event: Any) -> None:
            self.container = event.container
            self.connection = event.container.connect(
                f"amqp://127.0.0.1:{bus.port}",
                user="RootManageSharedAccessKey",
                password="SAS_KEY_VALUE",
                allowed_mechs="PLAIN",
                sasl_enabled=True,
                reconnect=False,
                virtual_host="localhost",
            )
            self.out = event.container.create_sender(self.connection, "out")
            self.second = event.container.create_sender(self.connection, "log")
            feeder = event.container.create_sender(self.connection, "in")
            self.feeder = feeder
            self.receiver = event.container.create_receiver(self.connection, "in")
            self.fed = 0
            self.timeout = event.container.schedule(SECONDS, self)

        def on_timer_task(self, event: Any) -> None:
            self.log.append("timeout")
            self.connection.close()

        def on_sendable(self, event: Any) -> None:
            if event.sender == self.feeder and not self.fed:
                self.fed = 1
                event.sender.send(proton.Message(id="m1", body="order"))
                self.receiver.flow(1)

        def on_message(self, event: Any) -> None:
            self.delivery = event.delivery
            self.container.declare_transaction(self.connection, handler=self)

        def on_transaction_declared(self, event: Any) -> None:
            transaction = event.transaction
            transaction.accept(self.delivery)
            transaction.send(self.out, proton.Message(body="moved"))
            transaction.send(self.second, proton.Message(body="noted"))
            if self.aborting:
                transaction.abort()
            else:
                transaction.commit()

        def on_transaction_committed(self, event: Any) -> None:
            self.log.append("committed")
            self.aborting = True
            self.feeder.send(proton.Message(id="m2", body="another"))
            self.receiver.flow(1)

        def on_transaction_aborted(self, event: Any) -> None:
            self.log.append("aborted")
            self.timeout.cancel()
            self.connection.close()

        def on_transaction_commit_failed(self, event: Any) -> None:
            self.log.append("commit failed")

        def on_transaction_declare_failed(self, event: Any) -> None:
            self.log.append("declare failed")

        def on_transport_error(self, event: Any) -> None:
            self.log.append(str(event.transport.condition))

    mover = Mover()
    reactor.Container(mover).run()
    assert mover.log == ["committed", "aborted"]
    assert [bus.counts(name).total for name in ("in", "out", "log")] == [1, 1, 1]
