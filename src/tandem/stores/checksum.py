"""CRC-32 as in zlib, with the processor's own instructions where there is a wheel for it. Both give the same number."""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
