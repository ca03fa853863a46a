"""The documented figures come out, from arithmetic and from what was counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tandem.model.errors import ConfigurationError
from tandem.spark.analytics.bill import Month
from tandem.spark.analytics.prices import load_prices
from tests.spark.ledger_lines import MINUTE, NOON

HEADER = "minute_ms,namespace,store,entity,operation,outcome,unit,count,bytes,check\n"


def line(minute: int, entity: str, operation: str, outcome: str, count: int, unit: int = 1, size: int = 0) -> str:
    return f"{NOON + minute * MINUTE},contoso,store-0,{entity},{operation},{outcome},{unit},{count},{size},{unit + count + size}\n"


def backlog(index: int) -> str:
    return f"contoso/x-servicebus-transfer/{index}"


@pytest.mark.spark
def test_ten_idle_backlog_queues_take_40_an_hour_960_a_day_28800_in_30_days(tmp_path: Path, spark: Any) -> None:
    from tandem.spark.analytics.cost import cost

    polls = "".join(line(minute, backlog(queue), "receive", "empty", 1) for minute in range(14, 1440, 15) for queue in range(10))
    (tmp_path / "store-0-000001.csv").write_text(HEADER + line(0, "orders", "send", "ok", 1) + polls)
    result = cost(spark, meters=[str(tmp_path)])
    assert (result.idle.per_hour, result.idle.per_day, result.idle.per_month) == (40, 960, 28_800)
    assert result.minutes == 1440
    assert result.idle_measured_per_hour == 40
    bill = {one.name: one.operations for one in result.scenarios}
    assert bill["paired, idle"] - bill["one namespace"] == 28_800


@pytest.mark.spark
def test_a_diverted_message_takes_four_operations(tmp_path: Path, spark: Any) -> None:
    from tandem.spark.analytics.cost import cost

    rows = [
        line(0, "orders", "send", "ok", 100),
        line(0, "orders", "receive", "ok", 100),
        line(0, "orders", "settle", "completed", 100),
        line(0, backlog(1), "send", "ok", 30),
        line(1, backlog(1), "receive", "ok", 30),
    ]
    (tmp_path / "store-0-000001.csv").write_text(HEADER + "".join(rows))
    result = cost(spark, meters=[str(tmp_path)], messages_per_month=1_000, outage_minutes_per_month=12_960)
    assert (result.messages, result.diverted, result.measured_per_diverted) == (100, 30, 4)
    assert result.billed == 100 + 100 + 30 + 30
    bill = {one.name: one.operations for one in result.scenarios}
    assert bill["paired, with failover"] == 2 * 700 + 4 * 300 + 12_960 + 28_800, "12,960 minutes are 30 % of the month"
    assert bill["active replication"] == 4_000


@pytest.mark.spark
def test_large_messages_are_billed_by_started_64_kilobytes_and_half_written_lines_are_dropped(tmp_path: Path, spark: Any) -> None:
    from tandem.spark.analytics.cost import cost

    whole = line(0, "orders", "send", "ok", 5, unit=3, size=900_000)
    (tmp_path / "store-0-000001.csv").write_text(HEADER + whole + line(0, "orders", "send", "ok", 777, size=1)[:-4])
    result = cost(spark, meters=[str(tmp_path)])
    assert (result.billed, result.messages) == (15, 5)


def failover(**given: Any) -> float:
    from tandem.spark.analytics.bill import Counted, Month, bill

    return {one.name: one.operations for one in bill(Counted(), Month(**given)).scenarios}["paired, with failover"]


def test_minutes_of_outage_decide_how_much_is_diverted_and_every_path_is_pinged() -> None:
    idle = 28_800
    assert failover(messages=43_200, outage_minutes=0) == 2 * 43_200 + idle
    assert failover(messages=43_200, outage_minutes=600) == 2 * 43_200 + 2 * 600 + 600 + idle
    assert failover(messages=43_200, outage_minutes=600, paths=20) == 2 * 43_200 + 2 * 600 + 12_000 + idle
    with pytest.raises(ConfigurationError, match="minutes of outage"):
        failover(outage_minutes=50_000)


def test_a_story_shorter_than_a_day_is_not_multiplied_and_a_longer_one_says_so() -> None:
    from tandem.spark.analytics.bill import Counted, Month, Operations, bill

    sends = (Operations("contoso", "orders", "send", "ok", 5_000, 5_000, 1),)
    short = bill(Counted(sends, minutes=2), Month())
    assert short.messages_per_month == 5_000
    assert "counted in 2 minutes" in short.basis and "too short" in short.basis
    long = bill(Counted(sends, minutes=3 * 24 * 60), Month())
    assert long.messages_per_month == 50_000
    assert long.basis == "50,000 messages, multiplied from 5,000 counted in 3.0 days"
    assert long.idle.per_month == short.idle.per_month == 28_800


def test_without_meters_the_bill_needs_neither_spark_nor_java() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from tandem.cli.application import app; "
        "result = CliRunner().invoke(app, ['cost', '--messages', '1000', '--json']); assert result.exit_code == 0, result.output; "
        "assert not {'pyspark', 'pyarrow'} & set(sys.modules), 'loaded'; print(result.output)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=os.environ | {"PATH": ""})
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["messages_per_month"] == 1_000


def test_prices_rise_in_steps() -> None:
    prices = load_prices()
    assert prices.of_month(13_000_000) == pytest.approx(10)
    assert prices.of_month(14_000_000) == pytest.approx(10.8)
    assert prices.of_month(100_000_000) == pytest.approx(10 + 87 * 0.8)


def test_a_price_table_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "prices.json").write_text('{"currency": "EUR"}')
    with pytest.raises(ConfigurationError, match="is no price table"):
        load_prices(str(tmp_path / "prices.json"))


_TABLE = {"currency": "EUR", "base_per_month": 1, "steps": [{"up_to_operations": None, "per_million": 1}], "billable": {}}
_STEPS = [{"up_to_operations": top, "per_million": 1} for top in (100, 10, None)]


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(_TABLE | {"billable": ["send"]}).encode(),
        json.dumps(_TABLE | {"base_per_month": float("nan")}).encode(),
        json.dumps(_TABLE | {"base_per_month": -5}).encode(),
        json.dumps(_TABLE | {"steps": _STEPS}).encode(),
        json.dumps(_TABLE).encode("utf-16")[:-1],
        b"\xe4\xf6\xfc",
        b"[" * 100_000,
    ],
)
def test_a_damaged_price_table_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "prices.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"prices\.json is no"):
        load_prices(str(tmp_path / "prices.json"))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_price_table_may_be_saved_by_any_editor(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "prices.json").write_text(json.dumps(_TABLE), encoding=encoding)
    assert load_prices(str(tmp_path / "prices.json")).currency == "EUR"


@pytest.mark.parametrize("minutes", [float("nan"), float("inf"), 0.0])
def test_a_poll_has_a_length(minutes: float) -> None:
    with pytest.raises(ConfigurationError, match="longer than 0 minutes"):
        Month(poll_minutes=minutes)
