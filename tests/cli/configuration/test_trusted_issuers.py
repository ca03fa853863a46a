"""`[[trusted_issuer]]` in a file: what is read, and what is refused with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.cli.configuration.settings import Flags, load
from tandem.model.entity import Right
from tandem.model.errors import ConfigurationError
from tandem.tokens.trust import TokenGrant, TrustedIssuer

FULL = """
[[trusted_issuer]]
issuer = "https://one.test/"
jwks_url = "https://one.test/keys"
ca = "ca.pem"
audiences = ["api://bus"]
algorithms = ["ES256"]
leeway = "5s"
refresh = "1m"
refetch_min = "10s"
service_roles = false
[[trusted_issuer.grant]]
subject = "shop"
rights = ["Send"]
entities = ["orders", "events/large"]
namespace = "tandem"
[[trusted_issuer.grant]]
group = "ops"
rights = ["Manage"]
[[trusted_issuer]]
issuer = "two"
jwks_file = "keys.json"
"""


def read(directory: Path, text: str) -> tuple[TrustedIssuer, ...]:
    (directory / "tandem.toml").write_text(text)
    (directory / "ca.pem").write_text("")
    (directory / "keys.json").write_text("")
    return load(Flags(), {}, directory).server.trusted_issuers


def test_everything_is_read(tmp_path: Path) -> None:
    one, two = read(tmp_path, FULL)
    assert one == TrustedIssuer(
        issuer="https://one.test/",
        jwks_url="https://one.test/keys",
        ca=tmp_path / "ca.pem",
        audiences=("api://bus",),
        algorithms=("ES256",),
        leeway_ms=5_000,
        refresh_ms=60_000,
        refetch_min_ms=10_000,
        service_roles=False,
        grants=(
            TokenGrant(subject="shop", rights=frozenset({Right.SEND}), entities=("orders", "events/large"), namespace="tandem"),
            TokenGrant(group="ops", rights=frozenset({Right.MANAGE})),
        ),
    )
    assert two == TrustedIssuer(issuer="two", jwks_file=tmp_path / "keys.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('jwks_url = "https://a/k"', "issuer is missing"),
        ('issuer = "a"', "from one place: jwks_url or jwks_file"),
        ('issuer = "a"\njwks_url = "https://a/k"\njwks_file = "keys.json"', "from one place"),
        ('issuer = "a"\njwks_url = "http://a/k"', "an https address; http only to this machine"),
        ('issuer = "a"\njwks_file = "gone.json"', "is not a file"),
        ('issuer = "a"\njwks_file = "keys.json"\nalgorithms = ["HS256"]', 'each "RS256" or "ES256"'),
        ('issuer = "a"\njwks_file = "keys.json"\nleeway = "1h"', "leeway: found"),
        ('issuer = "a"\njwks_file = "keys.json"\njwks = 1', "there is no such setting here"),
        ('issuer = "a"\njwks_file = "keys.json"\n[[trusted_issuer.grant]]\nrights = ["Send"]', "exactly one of subject, group and role"),
        ('issuer = "a"\njwks_file = "keys.json"\n[[trusted_issuer.grant]]\nsubject = "x"', "rights is missing"),
        ('issuer = "a"\njwks_file = "keys.json"\n[[trusted_issuer]]\nissuer = "a"\njwks_file = "keys.json"', "trusted already"),
    ],
)
def test_a_mistake_is_refused_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        read(tmp_path, f"[[trusted_issuer]]\n{text}\n")
    assert words in str(refusal.value)
    assert "tandem.toml:" in str(refusal.value)
