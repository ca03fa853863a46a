"""Every malformed input we ever met or thought of, replayed whole and byte by byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tandem import amqp
from tandem.amqp.performatives import Detach, Ending
from tests.amqp.peers import AMQP_HEADER, SASL_HEADER, RawPeer, parse

CORPUS = Path(__file__).resolve().parent.parent / "corpus" / "amqp"
FILES = sorted(CORPUS.glob("*.hex"))
BYTES_ONE_BY_ONE_MAX = 20_000
SASL_DENIED = b"\x00\x00\x00\x10\x02\x01\x00\x00\x00\x53\x44\xc0\x03\x01\x50\x01"


def detaching() -> RawPeer:
    peer = RawPeer().attached()
    peer.link.detach(amqp.AmqpError("a:b"))
    return peer


GIVEN: dict[str, Callable[[], RawPeer]] = {
    "nothing": RawPeer,
    "header": lambda: RawPeer().send(AMQP_HEADER),
    "open": lambda: RawPeer().opened(),
    "begun": lambda: RawPeer().begun(),
    "attached": lambda: RawPeer().attached(),
    "attached-receiver": lambda: RawPeer().attached(receiver=True),
    "detaching": detaching,
    "sasl": lambda: RawPeer(config=amqp.ConnectionConfig(sasl=amqp.SaslServer(), sasl_required=True)).send(SASL_HEADER),
}


def read(path: Path) -> tuple[dict[str, str], bytes]:
    lines = path.read_text(encoding="utf-8").splitlines()
    facts = dict(line[1:].strip().split(": ", 1) for line in lines if line.startswith("#") and ": " in line)
    return facts, bytes.fromhex("".join(line for line in lines if not line.startswith("#"))) * int(facts.get("times", "1"))


def verdict(peer: RawPeer, said: bytes) -> str:
    """What became of the connection, in the words of the files."""
    if peer.notes.mechanisms == [] and said == SASL_DENIED:
        return "sasl-denied"
    if said == AMQP_HEADER and peer.server.closed:
        return "hangup"
    frames = [p for _, p in parse(said)]
    last = frames[-1] if frames else None
    if peer.server.closed:
        assert isinstance(last, Ending)
        return "closed" if last.error is None else f"close {last.error.condition}"
    if isinstance(last, Ending) and last.error is not None:
        return f"end {last.error.condition}"
    if isinstance(last, Detach) and last.error is not None:
        return f"detach {last.error.condition}"
    return "alive"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("piecewise", [False, True], ids=["whole", "byte-by-byte"])
def test_malformed_input_ends_as_its_file_says(path: Path, piecewise: bool) -> None:
    facts, data = read(path)
    peer = GIVEN[facts["given"]]()
    peer.server.bytes_to_send()
    if piecewise:
        peer.send(*[data[at : at + 1] for at in range(min(len(data), BYTES_ONE_BY_ONE_MAX))])
    else:
        peer.send(data)
    said = peer.server.bytes_to_send()
    assert verdict(peer, said) == facts["expects"]
    assert len(peer.notes.closed) == (1 if peer.server.closed else 0)
    peer.send(data)
    if peer.server.closed:
        assert not peer.server.has_output, "a closed connection says nothing more"


def test_the_corpus_is_there() -> None:
    assert len(FILES) > 70
    assert {read(path)[0]["given"] for path in FILES} == set(GIVEN)
