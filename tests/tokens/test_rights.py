"""What a token allows: service roles, scopes, and the operator's own grants."""

from __future__ import annotations

import pytest

from tandem.model.entity import Right
from tandem.tokens.rights import rights_of
from tandem.tokens.trust import TokenGrant, TrustedIssuer
from tandem.tokens.verification import Claims
from tests.tokens.minting import OWNER, RECEIVER, SENDER

SEND, LISTEN, ALL = frozenset({Right.SEND}), frozenset({Right.LISTEN}), frozenset(Right)


def holder(*, roles: set[str] | None = None, scopes: set[str] | None = None, groups: set[str] | None = None) -> Claims:
    return Claims("i", "shop", frozenset({"shop", "id-7"}), frozenset(roles or ()), frozenset(scopes or ()), frozenset(groups or ()), 0, 1)


@pytest.mark.parametrize(
    ("said", "rights"),
    [
        (holder(roles={SENDER}), SEND),
        (holder(roles={RECEIVER.lower()}), LISTEN),
        (holder(roles={SENDER, RECEIVER}), SEND | LISTEN),
        (holder(roles={OWNER}), ALL),
        (holder(scopes={"Send"}), SEND),
        (holder(scopes={"manage"}), ALL),
    ],
)
def test_service_roles_and_scopes_hold_in_the_whole_namespace(said: Claims, rights: frozenset[Right]) -> None:
    assert rights_of(said, TrustedIssuer(issuer="i"), "tandem") == {"": rights}
    assert rights_of(said, TrustedIssuer(issuer="i", service_roles=False), "tandem") == {}


@pytest.mark.parametrize("said", [holder(), holder(roles={"Reader"}), holder(scopes={"user_impersonation"}), holder(roles={"Send"})])
def test_other_words_allow_nothing(said: Claims) -> None:
    assert rights_of(said, TrustedIssuer(issuer="i"), "tandem") == {}


def test_grants_know_their_holder_by_subject_group_or_role_and_may_be_for_some_entities() -> None:
    trust = TrustedIssuer(
        issuer="i",
        grants=(
            TokenGrant(subject="id-7", rights=SEND, entities=("Orders", "/events/")),
            TokenGrant(group="ops", rights=LISTEN, entities=("orders",)),
            TokenGrant(role="clerk", rights=LISTEN),
            TokenGrant(role="owner", rights=frozenset({Right.MANAGE}), entities=("audit",)),
            TokenGrant(subject="shop", rights=ALL, namespace="other"),
            TokenGrant(subject="somebody", rights=ALL),
        ),
    )
    assert rights_of(holder(), trust, "tandem") == {"orders": SEND, "events": SEND}
    assert rights_of(holder(groups={"ops"}), trust, "tandem") == {"orders": SEND | LISTEN, "events": SEND}
    assert rights_of(holder(scopes={"clerk"}, roles={"owner"}), trust, "tandem")[""] == LISTEN
    assert rights_of(holder(roles={"owner"}), trust, "tandem")["audit"] == ALL
    assert rights_of(holder(), trust, "OTHER")[""] == ALL
