"""Meter files added up: the same sums as one row after the other gives, whatever the form of the files."""

from __future__ import annotations

import collections
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from tandem.model.errors import ConfigurationError
from tandem.spark.analytics import meter_files
from tandem.spark.analytics.meter_files import NAMES, Totals, add_up, pieces_of
from tandem.stores.meter_files import COLUMNS

Row = dict[str, Any]


def rows(count: int) -> list[Row]:
    dice = Random(count)
    return [
        {
            "minute_ms": 1_750_000_000_000 + dice.randrange(100) * 60_000,
            "namespace": dice.choice(("west", "east")),
            "store": "store-0",
            "entity": dice.choice(("orders", 'a "quoted", one', "contoso/x-servicebus-transfer/1", "späti")),
            "operation": dice.choice(("send", "receive")),
            "outcome": dice.choice(("ok", "empty")),
            "unit": dice.randint(1, 4),
            "count": dice.randrange(1 << 40),
            "bytes": dice.randrange(1 << 50),
        }
        for _ in range(count)
    ]


def by_hand(given: list[Row]) -> list[Row]:
    groups: dict[tuple[Any, ...], list[Row]] = collections.defaultdict(list)
    for row in given:
        groups[tuple(row[name] for name in (*NAMES, "unit"))].append(row)
    return [
        dict(zip((*NAMES, "unit"), key, strict=True)) | {name: sum(row[name] for row in group) for name in ("count", "bytes")}
        for key, group in groups.items()
    ]


def in_order(given: list[Row]) -> list[Row]:
    return sorted(given, key=lambda row: tuple(row[name] for name in (*NAMES, "unit")))


def line(row: Row) -> str:
    quoted = '"' + row["entity"].replace('"', '""') + '"'
    numbers = [row["unit"], row["count"], row["bytes"]]
    words = [row["minute_ms"], row["namespace"], row["store"], quoted, row["operation"], row["outcome"]]
    return ",".join(map(str, [*words, *numbers, sum(numbers)])) + "\n"


@pytest.mark.parametrize("codes_max", [0, 1_000_000])
def test_parquet_in_many_row_groups_and_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codes_max: int) -> None:
    monkeypatch.setattr(meter_files, "_CODES_MAX", codes_max)
    monkeypatch.setattr(meter_files, "_BATCH_ROWS", 100)
    monkeypatch.setattr(meter_files, "_PARTS_MAX", 3)
    given = rows(5_000)
    pa.parquet.write_table(pa.Table.from_pylist(given), tmp_path / "meters.parquet", row_group_size=700)
    pieces = pieces_of([str(tmp_path)])
    assert len(pieces) == 8
    totals = add_up(pieces)
    assert in_order(totals.rows.to_pylist()) == in_order(by_hand(given))
    minutes = [row["minute_ms"] for row in given]
    assert (totals.first_ms, totals.last_ms) == (min(minutes), max(minutes))
    assert totals.minutes == (max(minutes) - min(minutes)) // 60_000 + 1


def test_sums_too_large_for_floating_point_are_exact_all_the_same(tmp_path: Path) -> None:
    given = [rows(1)[0] | {"bytes": (1 << 52) + number} for number in range(200)]
    pa.parquet.write_table(pa.Table.from_pylist(given), tmp_path / "meters.parquet")
    assert add_up(pieces_of([str(tmp_path)])).rows.to_pylist() == by_hand(given)


def test_csv_and_parquet_together(tmp_path: Path) -> None:
    first, second = rows(300), rows(400)
    (tmp_path / "contoso" / "meters").mkdir(parents=True)
    (tmp_path / "contoso" / "meters" / "store-0-000001.csv").write_text(COLUMNS + "\n" + "".join(map(line, first)))
    pa.parquet.write_table(pa.Table.from_pylist(second), tmp_path / "old.parquet")
    assert in_order(add_up(pieces_of([str(tmp_path)])).rows.to_pylist()) == in_order(by_hand(first + second))


def test_a_last_line_cut_off_at_any_byte_is_not_counted(tmp_path: Path) -> None:
    file = tmp_path / "store-0-000001.csv"
    first, second = rows(2)
    whole = COLUMNS + "\n" + line(first)
    unfinished = line(second).encode()
    for length in range(len(unfinished) - 1):
        file.write_bytes(whole.encode() + unfinished[:length])
        totals = add_up(pieces_of([str(file)]))
        assert totals.rows.to_pylist() == by_hand([first]), unfinished[:length]
        assert totals.broken == (1 if length else 0), unfinished[:length]


def test_damage_in_the_middle_is_told(tmp_path: Path) -> None:
    file = tmp_path / "store-0-000001.csv"
    given = rows(5)
    lines = [line(row) for row in given]
    lines[1] = "1,2,3\n"
    lines[3] = line(given[3] | {"count": 7}).replace(",7,", ",8,", 1)
    file.write_text(COLUMNS + "\n" + "".join(lines))
    totals = add_up(pieces_of([str(file)]))
    assert in_order(totals.rows.to_pylist()) == in_order(by_hand([given[0], given[2], given[4]]))
    assert totals.broken == 2
    file.write_text(COLUMNS + "\n1,2,3\n")
    assert add_up(pieces_of([str(file)])) == Totals(meter_files.TOTALS.empty_table(), broken=1)


def test_a_line_with_a_number_that_is_none_is_told_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter_files, "_BLOCK_BYTES", 2_000)
    file = tmp_path / "store-0-000001.csv"
    given = rows(200)
    lines = [line(row) for row in given]
    for place, damage in ((0, "\0\0\0\0"), (100, "12a4"), (150, "9" * 30), (199, COLUMNS)):
        file.write_text(COLUMNS + "\n" + "".join([*lines[:place], damage + lines[place][4:], *lines[place:]]))
        totals = add_up(pieces_of([str(file)]))
        assert in_order(totals.rows.to_pylist()) == in_order(by_hand(given)), place
        assert totals.broken == 1


def test_files_without_rows_add_up_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "store-0-000001.csv").write_text("")
    (tmp_path / "store-1-000001.csv").write_text(COLUMNS + "\n")
    assert add_up(pieces_of([str(tmp_path)])) == Totals(meter_files.TOTALS.empty_table())


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no meter files below"):
        pieces_of([str(tmp_path)])
    pa.parquet.write_table(pa.table({"entity": ["q"]}), tmp_path / "other.parquet")
    with pytest.raises(ConfigurationError, match=r"other\.parquet has no column namespace"):
        pieces_of([str(tmp_path)])
    (tmp_path / "other.parquet").write_bytes(b"not Parquet at all")
    with pytest.raises(ConfigurationError, match=r"other\.parquet cannot be read"):
        pieces_of([str(tmp_path)])
    (tmp_path / "other.parquet").unlink()
    for content in (b"a,b\n1,2\n", (COLUMNS + "\n").encode("utf-16")):
        (tmp_path / "other.csv").write_bytes(content)
        with pytest.raises(ConfigurationError, match=r"other\.csv is no meter file"):
            pieces_of([str(tmp_path)])


@pytest.mark.spark
def test_a_table_and_the_files_it_came_from_make_the_same_bill(tmp_path: Path, spark: Any) -> None:
    from tandem.spark.analytics.cost import cost

    given = rows(2_000)
    pa.parquet.write_table(pa.Table.from_pylist(given), tmp_path / "meters.parquet", row_group_size=300)
    of_files = cost(spark, meters=[str(tmp_path)])
    of_table = cost(spark, meters=spark.read.parquet(str(tmp_path / "meters.parquet")))
    of_elsewhere = cost(spark, meters=[(tmp_path / "meters.parquet").as_uri()])
    assert of_files == of_table == of_elsewhere
    assert sum(one.count for one in of_files.lines) == sum(row["count"] for row in given)
