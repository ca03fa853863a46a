"""The same names without `await`; all the logic is the asynchronous one's. Type checkers read `sync.pyi`, which `make docs` writes."""

from __future__ import annotations

from tandem.client import metrics, outbox, pairing, pipelined, receiver, replication, sender, syphon, tokens
from tandem.client.facade import facade

PairedNamespaces = facade(pairing.PairedNamespaces, __name__)
PairMetrics = facade(metrics.PairMetrics, __name__)
Syphon = facade(syphon.Syphon, __name__)
PairedSender = facade(sender.PairedSender, __name__)
ActiveReplication = facade(replication.ActiveReplication, __name__)
ActiveSender = facade(replication.ActiveSender, __name__)
PassiveReplication = facade(replication.PassiveReplication, __name__)
PassiveSender = facade(replication.PassiveSender, __name__)
DuplicateSuppressingReceiver = facade(receiver.DuplicateSuppressingReceiver, __name__)
Outbox = facade(outbox.Outbox, __name__)
PipelinedSender = facade(pipelined.PipelinedSender, __name__)
IssuerCredential = facade(tokens.IssuerCredential, __name__)
SasCredential = facade(tokens.SasCredential, __name__)
