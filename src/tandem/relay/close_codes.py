"""Close codes of WebSockets that the relay uses (RFC 6455 7.4)."""

from __future__ import annotations

from typing import Final

NORMAL: Final = 1000
GOING_AWAY: Final = 1001
PROTOCOL_ERROR: Final = 1002
NO_STATUS: Final = 1005
INVALID_DATA: Final = 1007
POLICY_VIOLATION: Final = 1008
TOO_BIG: Final = 1009
INTERNAL_ERROR: Final = 1011
