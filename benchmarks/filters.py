"""What subscription rules cost: time per message for filters, actions, rule sets and a topic with many subscriptions.

    PYTHONPATH=src python benchmarks/filters.py [--json]

Exits with 1 if the three-term filter takes more than 3 µs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from time import perf_counter_ns

from tandem.broker.rules import message_view, sql_compile
from tandem.broker.rules.message_view import MessageView, view_of
from tandem.broker.rules.rules import RuleSet, compile_filter, compile_rule
from tandem.broker.rules.sql_parser import parse_filter
from tandem.broker.rules.topic_rules import TopicRules
from tandem.model.entity import CorrelationFilter, Filter, RuleDescription, SqlAction, SqlFilter

THREE_TERMS = "sys.Label = 'a' AND price > 10 AND region IN ('eu','us')"
OTHER_CASE = "sys.Label = 'a' AND Price > 10 AND Region IN ('eu','us')"
THREE_TERMS_US_MAX = 3.0

SYSTEM: dict[str, object] = {"Label": "a", "MessageId": "m-1", "CorrelationId": "c-1", "EnqueuedTimeUtc": 1_714_996_800_000}
USER: dict[str, object] = {"price": 11, "region": "us", "color": "red", "note": "a long enough note on the order", "quantity": 4}


def microseconds(work: Callable[[], object], seconds: float = 0.2) -> float:
    """The best of five runs: whatever else the machine does only ever adds."""
    count = 1
    while True:
        began = perf_counter_ns()
        for _ in range(count):
            work()
        if perf_counter_ns() - began > seconds * 2e8:
            break
        count *= 2
    best = float("inf")
    for _ in range(5):
        began = perf_counter_ns()
        for _ in range(count):
            work()
        best = min(best, (perf_counter_ns() - began) / count / 1000)
    return best


def fresh() -> MessageView:
    return view_of(SYSTEM, USER)


def rules_of(*filters: Filter, action: str | None = None) -> RuleSet:
    done = None if action is None else SqlAction(expression=action)
    return RuleSet([compile_rule(RuleDescription(name=str(n), filter=f, action=done)) for n, f in enumerate(filters)])


def measure() -> dict[str, float]:
    view = fresh()
    results: dict[str, float] = {}

    def filter_of(name: str, filter: Filter, seen: MessageView = view) -> None:
        matches = compile_filter(filter).matches
        results[name] = microseconds(lambda: matches(seen))

    filter_of("filter: three terms, all true", SqlFilter(expression=THREE_TERMS))
    filter_of("filter: three terms, first false", SqlFilter(expression=THREE_TERMS.replace("'a'", "'b'")))
    filter_of(
        "filter: three terms, names in another case",
        SqlFilter(expression=THREE_TERMS.replace("price", "Price").replace("region", "Region")),
    )
    filter_of("filter: property that is not there", SqlFilter(expression="absent = 1"))
    filter_of("filter: LIKE '%order'", SqlFilter(expression="note LIKE '%order'"))
    filter_of("filter: LIKE 'a%en_ugh%order'", SqlFilter(expression="note LIKE 'a%en_ugh%order'"))
    filter_of("filter: price * quantity > 40", SqlFilter(expression="price * quantity > 40"))
    filter_of("filter: correlation, label and one property", CorrelationFilter(label="a", properties=(("color", "red"),)))
    worst = "%" + "a_" * 500 + "b%"
    filter_of("filter: worst LIKE on 32 Ki characters", SqlFilter(expression=f"x LIKE '{worst}'"), view_of({}, {"x": "a" * 32_768}))

    action = rules_of(SqlFilter(expression="1=1"), action="SET quantity = quantity / 2; REMOVE color; SET sys.CorrelationId = 'low'")
    results["action: three statements"] = microseconds(lambda: action.select(view))
    topic = TopicRules([(n, rules_of(SqlFilter(expression=f"price > {n} AND note LIKE 'a%'"))) for n in range(10)])
    results["topic: 10 subscriptions, SQL, all match"] = microseconds(lambda: topic.select(fresh()))
    many = TopicRules(
        [(n, rules_of(CorrelationFilter(label=f"label-{n}"))) for n in range(2_000)] + [(-1, rules_of(CorrelationFilter(label="a")))]
    )
    results["topic: 2,001 subscriptions, correlation, one matches"] = microseconds(lambda: many.select(fresh()))
    results["parse: three terms"] = microseconds(lambda: parse_filter(THREE_TERMS))
    node = parse_filter(THREE_TERMS)
    results["compile: three terms, known shape"] = microseconds(lambda: sql_compile.compile_predicate(node, True, lambda: None))  # type: ignore[arg-type, return-value]
    return results


def main() -> int:
    results = measure()
    compiled = not message_view.__file__.endswith(".py")
    if "--json" in sys.argv:
        print(json.dumps({"compiled": compiled, "microseconds": results}, indent=2))
    else:
        print(f"microseconds per message, {'compiled' if compiled else 'plain Python'}")
        for name, value in results.items():
            print(f"{value:12.2f}  {name}")
    return 0 if results["filter: three terms, all true"] <= THREE_TERMS_US_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
