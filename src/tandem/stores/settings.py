"""What can be set about a store; built from configuration in one place and handed in."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.model.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Sizes in bytes, durations in milliseconds."""

    segment_bytes: int = 67_108_864
    """A segment is closed by the first block that ends beyond this."""
    free_bytes_min: int = 0
    """With less than this free on its file system the store says that it is short of room; 0 looks at nothing but its own segments."""
    audit_retention_ms: int = 0
    """How long a segment whose facts are all dead is kept in `audit/` before it is deleted; 0 deletes it at once.
    In an engine it stays where it is."""
    lazy_bytes_max: int = 1_048_576
    """Records nobody waits for are written once this many bytes of them have gathered."""
    lazy_ms_max: int = 1_000
    """… or once the first of them is this old, at the next `flush`."""
    check_ms: int = 1_000
    """How often it looks whether its directory is still there, and room on the disk."""
    stall_ms_max: int = 2_000
    """A commit that takes longer than this makes the store DEGRADED until it returns."""
    read_bytes_max: int = 1_048_576
    """Neighbouring records are read back with one call of at most about this size."""
    read_gap_bytes_max: int = 65_536
    """Records further apart than this are read with calls of their own."""
    reader_files_max: int = 64
    """Segments kept open for reading."""
    compaction_records_per_step: int = 256
    """Records looked at by one `step_compaction`."""
    engine_bytes_max: int = 0
    """In an engine: with a database larger than this the store says that it is short of room; 0 looks at nothing."""
    index_spill_bytes: int = 1_048_576
    """Index entries of the growing segment held in memory before they go to its index file."""

    def __post_init__(self) -> None:
        if not 1_024 <= self.segment_bytes <= 1_073_741_824:
            raise ConfigurationError(f"segment_bytes: {self.segment_bytes}; allowed are 1 KiB to 1 GiB")
