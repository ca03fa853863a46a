"""Writes tandem.json, the Grafana dashboard: panels as a table here, so that nobody edits a thousand lines of JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PANELS = (
    ("Stores (1 up, 2 degraded, 0 down, -1 corrupt)", "short", (("tandem_store_up", "{{namespace}} {{store}}"),)),
    ("Sends a second", "ops", (('sum by (namespace) (rate(tandem_operations_total{operation="send"}[1m]))', "{{namespace}}"),)),
    ("Operations a second, by kind", "ops", (("sum by (operation) (rate(tandem_operations_total[1m]))", "{{operation}}"),)),
    ("Waiting messages, the ten fullest", "short", (('topk(10, tandem_messages{state="active"})', "{{entity}}"),)),
    (
        "Dead letters",
        "short",
        (('topk(10, tandem_messages{entity=~".*/\\\\$DeadLetterQueue",state="active"} > 0)', "{{entity}}"),),
    ),
    (
        "Diverted messages in backlog queues",
        "short",
        (('sum by (namespace) (tandem_messages{entity=~"(?i)[^/]+/x-servicebus-transfer/.*",state="active"})', "{{namespace}}"),),
    ),
    ("Syphon: messages home a second", "ops", (("rate(tandem_syphon_moved_total[1m])", "moved"), ("tandem_syphon_remaining", "remaining"))),
    (
        "Commit time, p50 and p99",
        "s",
        tuple(
            (f"histogram_quantile({q}, sum by (store, le) (rate(tandem_commit_seconds_bucket[1m])))", f"p{name} store {{{{store}}}}")
            for q, name in (("0.5", "50"), ("0.99", "99"))
        ),
    ),
    (
        "Send time until durable, p50 and p99",
        "s",
        tuple(
            (f"histogram_quantile({q}, sum by (namespace, le) (rate(tandem_send_seconds_bucket[1m])))", f"p{name} {{{{namespace}}}}")
            for q, name in (("0.5", "50"), ("0.99", "99"))
        ),
    ),
    (
        "Age of messages when delivered, p99 of the ten slowest",
        "s",
        (("topk(10, histogram_quantile(0.99, sum by (entity, le) (rate(tandem_delivery_age_seconds_bucket[5m]))))", "{{entity}}"),),
    ),
    (
        "Event loop lag, p99",
        "s",
        (("histogram_quantile(0.99, sum by (instance, le) (rate(tandem_loop_lag_seconds_bucket[1m])))", "{{instance}}"),),
    ),
    ("Connections", "short", (("tandem_connections", "{{namespace}}"),)),
)


def panel(number: int, title: str, unit: str, queries: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number // 2)},
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {"defaults": {"unit": unit, "custom": {"fillOpacity": 10}}, "overrides": []},
        "targets": [{"expr": expr, "legendFormat": legend, "refId": chr(65 + at)} for at, (expr, legend) in enumerate(queries)],
    }


def dashboard() -> dict[str, Any]:
    return {
        "title": "Tandem",
        "uid": "tandem",
        "tags": ["tandem"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}]},
        "panels": [panel(number, *one) for number, one in enumerate(PANELS)],
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("tandem.json").write_text(text(), encoding="utf-8")
