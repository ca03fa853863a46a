"""The issuers a broker believes, opened: their keys at hand, the last known ones kept beside the journals."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from tandem.model.clock import Clock
from tandem.server.settings import ServerSettings
from tandem.tokens.key_source import Fetch, KeySource
from tandem.tokens.trust import TrustedIssuer
from tandem.tokens.verifier import TokenVerifier


def open_verifier(
    settings: ServerSettings, clock: Clock, note: Callable[[str], None], on_revoked: Callable[[], None], fetch: Fetch | None = None
) -> TokenVerifier:
    """`fetch`: how keys are had, if not from where the settings say."""
    sources = [KeySource(trust, clock, note, cache=_cache(settings.data_dir, trust), fetch=fetch) for trust in settings.trusted_issuers]
    verifier = TokenVerifier(sources, clock)
    verifier.on_revoked = on_revoked
    return verifier


def _cache(directory: Path | None, trust: TrustedIssuer) -> Path | None:
    """Named after the issuer and the address, so that keys of another are never taken for its own."""
    if directory is None or trust.jwks_file is not None:
        return None
    name = hashlib.sha256(f"{trust.issuer}\n{trust.jwks_url}".encode()).hexdigest()[:16]
    return directory / f"issuer-keys-{name}.json"
