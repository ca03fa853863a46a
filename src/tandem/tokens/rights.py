"""What a believed token allows here: its roles and scopes, and the grants an operator wrote down."""

from __future__ import annotations

from typing import Final

from tandem.model.entity import Right
from tandem.tokens.trust import TokenGrant, TrustedIssuer
from tandem.tokens.verification import Claims

SERVICE_ROLES: Final = {
    "azure service bus data sender": frozenset({Right.SEND}),
    "azure service bus data receiver": frozenset({Right.LISTEN}),
    "azure service bus data owner": frozenset(Right),
}
_SCOPES: Final = {right.value.casefold(): frozenset({right}) for right in Right}
_NONE: Final[frozenset[Right]] = frozenset()

RightsByScope = dict[str, frozenset[Right]]
"""Casefolded path of an entity, `""` for the namespace -> what is allowed on it and on everything beneath it."""


def rights_of(claims: Claims, trust: TrustedIssuer, namespace: str) -> RightsByScope:
    """Everything the token's holder may do in this namespace."""
    found: RightsByScope = {}
    if trust.service_roles:
        for role in claims.roles | claims.scopes:
            _add(found, "", SERVICE_ROLES.get(role.casefold(), _NONE))
        for word in claims.scopes:
            _add(found, "", _SCOPES.get(word.casefold(), _NONE))
    for grant in trust.grants:
        if _meant(grant, claims) and grant.namespace.casefold() in ("", namespace.casefold()):
            for entity in grant.entities or ("",):
                _add(found, entity.strip("/").casefold(), grant.rights)
    return found


def _meant(grant: TokenGrant, claims: Claims) -> bool:
    if grant.subject:
        return grant.subject in claims.names
    if grant.group:
        return grant.group in claims.groups
    return bool(grant.role) and grant.role in claims.roles | claims.scopes


def _add(found: RightsByScope, scope: str, rights: frozenset[Right]) -> None:
    if rights:
        everything = frozenset(Right) if Right.MANAGE in rights else rights
        found[scope] = found.get(scope, _NONE) | everything
