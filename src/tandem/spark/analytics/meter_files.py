"""Meters added up where they lie: each task reads its part of the files with Arrow, and groups by the codes that stand for the names.

A meter file has few different names in many rows. Read as codes, a row costs a few multiplications instead of four strings to hash.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from tandem.model.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES: Final = ("namespace", "entity", "operation", "outcome")
_NUMBERS: Final = ("unit", "count", "bytes")
_COLUMNS: Final = (*NAMES, "unit", "count", "bytes", "minute_ms")
_BATCH_ROWS: Final = 131_072
_PARTS_MAX: Final = 64
"""Results of batches kept before they are added up in their turn."""
_CODES_MAX: Final = 1_000_000
"""More combinations of names than that are grouped by hashing, not by counting."""
_EXACT_MAX: Final = 1 << 53
"""Sums below are exact in the floating point numbers that counting uses."""
_CODE: Final = pa.dictionary(pa.int32(), pa.string())
_WHOLE: Final = ("minute_ms", "unit", "count", "bytes", "check")
_TYPES: Final = dict.fromkeys(NAMES, _CODE) | dict.fromkeys(_WHOLE, pa.int64())
_BLOCK_BYTES: Final = 8_388_608

TOTALS: Final = pa.schema([*((name, pa.string()) for name in NAMES), *((name, pa.int64()) for name in _NUMBERS)])


@dataclass(frozen=True, slots=True)
class Totals:
    """One row per names and unit, and the minutes in which anything was counted."""

    rows: pa.Table
    first_ms: int | None = None
    last_ms: int | None = None
    broken: int = 0
    """Lines that were not counted: one may be being written just now, more are damage."""

    @property
    def minutes(self) -> int:
        """From the first to the last."""
        return (self.last_ms - self.first_ms) // 60_000 + 1 if self.first_ms is not None and self.last_ms is not None else 0


@dataclass(frozen=True, slots=True)
class Piece:
    """What one task reads at a time: some row groups of a Parquet file, or a CSV file."""

    path: str
    row_groups: tuple[int, ...] | None


def pieces_of(paths: Iterable[str]) -> list[Piece]:
    """CSV as a broker writes it, below data directories, or Parquet with the same columns."""
    found: list[Piece] = []
    for given in paths:
        root = Path(given)
        if root.is_dir():
            files = sorted({*root.glob("*.parquet"), *root.glob("*.csv"), *root.glob("meters/*.csv"), *root.glob("*/meters/*.csv")})
        else:
            files = [root] if root.is_file() else []
        if not files:
            raise ConfigurationError(
                f"meters: no meter files below {given}; give a broker's data directory (a broker writes them every minute)"
            )
        for file in files:
            found += _row_groups(file) if file.suffix == ".parquet" else _csv(file)
    return found


def _csv(file: Path) -> list[Piece]:
    try:
        with file.open("rb") as lines:
            head = lines.readline(10_000)
    except OSError as error:
        raise ConfigurationError(f"meters: {file} cannot be read: {error.strerror}") from error
    names = head.decode(errors="replace").strip().split(",")
    missing = [name for name in (*_COLUMNS, "check") if name not in names]
    if head.strip() and missing:
        raise ConfigurationError(f"meters: {file} is no meter file: it has no column {missing[0]}")
    return [Piece(str(file.resolve()), None)]


def _row_groups(file: Path) -> list[Piece]:
    try:
        parquet = pa.parquet.ParquetFile(file)
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigurationError(f"meters: {file} cannot be read: {error}") from error
    missing = [name for name in _COLUMNS if name not in parquet.schema_arrow.names]
    if missing:
        raise ConfigurationError(f"meters: {file} has no column {missing[0]}; it needs {', '.join(_COLUMNS)}")
    return [Piece(str(file.resolve()), (number,)) for number in range(parquet.metadata.num_row_groups)]


def add_up_files(spark: SparkSession, paths: list[str]) -> Totals:
    """All of them, one share per task."""
    pieces = pieces_of(paths)
    count = max(1, min(len(pieces), spark.sparkContext.defaultParallelism))
    shares = [_together(pieces[number::count]) for number in range(count)]
    # Not as a data frame: a quarter of a second of planning would be a third of the work.
    return merged(spark.sparkContext.parallelize(shares, count).map(add_up).collect())


def _together(pieces: list[Piece]) -> list[Piece]:
    """Row groups of one file are read through one opening of it."""
    groups: dict[str, list[int]] = {}
    files: list[Piece] = []
    for piece in pieces:
        if piece.row_groups is None:
            files.append(piece)
        else:
            groups.setdefault(piece.path, []).extend(piece.row_groups)
    return files + [Piece(path, tuple(numbers)) for path, numbers in groups.items()]


def add_up(pieces: Iterable[Piece]) -> Totals:
    """In one thread and in bounded memory, whatever the size of the files."""
    parts: list[Totals] = []
    for piece in pieces:
        for batch, broken in _batches(piece):
            parts.append(_added(batch, broken))
            if len(parts) >= _PARTS_MAX:
                parts = [merged(parts)]
    return merged(parts)


def _batches(piece: Piece) -> Iterator[tuple[pa.RecordBatch, int]]:
    """With the number of broken lines among them."""
    if piece.row_groups is not None:
        parquet = pa.parquet.ParquetFile(piece.path, read_dictionary=list(NAMES), memory_map=True)
        for batch in parquet.iter_batches(_BATCH_ROWS, list(piece.row_groups), columns=list(_COLUMNS), use_threads=False):
            yield batch, 0
    elif Path(piece.path).stat().st_size:
        given = 0
        try:
            for one in _csv_batches(piece.path, _TYPES):
                yield one
                given += 1
        except pa.ArrowInvalid:  # a number that is none, from here on: numbers as text, looked at one by one
            yield from itertools.islice(_csv_batches(piece.path, _TYPES | dict.fromkeys(_WHOLE, pa.string())), given, None)


def _csv_batches(path: str, types: dict[str, pa.DataType]) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Blocks of the file, the same whatever the types."""
    skipped: list[Any] = []

    def skip(row: Any) -> str:
        skipped.append(row.number)
        return "skip"  # too few columns

    reader = pa.csv.open_csv(
        path,
        pa.csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
        pa.csv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip),
        pa.csv.ConvertOptions(column_types=types),
    )
    for batch in reader:
        whole = _whole_numbers(batch) if types[_WHOLE[0]] == pa.string() else batch
        # A line that is being written right now does not add up yet.
        whole = whole.filter(pc.equal(whole["check"], pc.add(pc.add(whole["unit"], whole["count"]), whole["bytes"])))
        yield whole, batch.num_rows - whole.num_rows + len(skipped)
        skipped.clear()
    if skipped:
        yield pa.RecordBatch.from_pylist([], reader.schema), len(skipped)


def _whole_numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows whose numbers are such, as numbers."""
    for name in _WHOLE:
        batch = batch.filter(pc.match_substring_regex(batch[name], "^[0-9]{1,18}$"))
    for name in _WHOLE:
        batch = batch.set_column(batch.schema.get_field_index(name), name, batch[name].cast(pa.int64()))
    return batch


def _added(batch: pa.RecordBatch, broken: int) -> Totals:
    """Grouped by one number that stands for all names and the unit."""
    if not batch.num_rows:
        return Totals(TOTALS.empty_table(), broken=broken)
    units = batch["unit"].cast(pa.int64()).to_numpy()
    code = units
    words: list[pa.Array] = []
    for name in NAMES:
        column = batch[name]
        if not pa.types.is_dictionary(column.type) or column.null_count:
            column = column.cast(pa.string()).dictionary_encode(null_encoding="encode")
        words.append(column.dictionary)
        if len(column.dictionary) > 1:
            code = code * len(column.dictionary) + column.indices.to_numpy()
    codes, sums = _sums(code, [batch["count"], batch["bytes"]])
    spelled: list[pa.Array] = []
    for dictionary in reversed(words):
        spelled.append(dictionary.take(pa.array(codes % len(dictionary))))
        codes = codes // len(dictionary)
    span = pc.min_max(batch["minute_ms"])
    return Totals(pa.table([*reversed(spelled), pa.array(codes), *sums], schema=TOTALS), span["min"].as_py(), span["max"].as_py(), broken)


def _sums(code: np.ndarray, columns: list[pa.Array]) -> tuple[np.ndarray, list[pa.Array]]:
    """The codes that occur, and each column's sum for each of them, exact to the last digit."""
    values = [column.cast(pa.int64()).to_numpy() for column in columns]
    if code.max() < _CODES_MAX and all(int(np.abs(one).max()) * len(one) < _EXACT_MAX for one in values):
        codes = np.flatnonzero(np.bincount(code))
        return codes, [pa.array(np.bincount(code, one)[codes].astype(np.int64)) for one in values]
    names = [str(number) for number in range(len(values))]
    grouped = pa.table([pa.array(code), *values], names=["code", *names]).group_by("code", use_threads=False)
    table = grouped.aggregate([(name, "sum") for name in names])
    return table["code"].to_numpy(), [table[f"{name}_sum"].combine_chunks() for name in names]


def merged(parts: list[Totals]) -> Totals:
    """Totals as one, each line once."""
    if not parts:
        return Totals(TOTALS.empty_table())
    grouped = pa.concat_tables([part.rows for part in parts]).group_by([*NAMES, "unit"], use_threads=False)
    sums = grouped.aggregate([("count", "sum"), ("bytes", "sum")])
    rows = pa.table([sums[name] for name in (*NAMES, "unit", "count_sum", "bytes_sum")], schema=TOTALS)
    firsts = [part.first_ms for part in parts if part.first_ms is not None]
    lasts = [part.last_ms for part in parts if part.last_ms is not None]
    return Totals(rows, min(firsts, default=None), max(lasts, default=None), sum(part.broken for part in parts))
