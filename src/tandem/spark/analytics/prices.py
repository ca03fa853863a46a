"""A table of prices, read from a file, and what a number of operations costs by it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from tandem.model.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class PriceStep:
    up_to_operations: int | None
    """None: everything above the step before."""
    per_million: float


@dataclass(frozen=True, slots=True)
class Prices:
    name: str
    currency: str
    base_per_month: float
    steps: tuple[PriceStep, ...]
    billable: dict[str, int]
    """Operation -> how many billed operations one of it is, for each started 64 KB; 0 is free. What is not named is billed once."""

    def of_month(self, operations: float) -> float:
        """What so many billed operations in 30 days cost, base price included."""
        total, below = self.base_per_month, 0.0
        for step in self.steps:
            top = operations if step.up_to_operations is None else min(operations, step.up_to_operations)
            if top > below:
                total += (top - below) * step.per_million / 1_000_000
                below = top
        return total


def load_prices(path: str | None = None) -> Prices:
    """From a file, or the one that comes with the package."""
    if path is None:
        text, where = resources.files("tandem.spark.analytics").joinpath("prices.json").read_bytes(), "prices.json"
    else:
        where = path
        try:
            text = Path(path).read_bytes()
        except OSError as error:
            raise ConfigurationError(f"prices: {path} cannot be read: {error.strerror}") from error
    try:
        return _prices(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError(
            f"prices: {where} is no price table ({error!r}); it needs currency, base_per_month, steps and billable"
        ) from error


def _prices(given: dict[str, Any]) -> Prices:
    steps = tuple(
        PriceStep(None if one["up_to_operations"] is None else int(one["up_to_operations"]), float(one["per_million"]))
        for one in given["steps"]
    )
    if not steps or steps[-1].up_to_operations is not None:
        raise ValueError("the last step must have up_to_operations null")
    tops = [step.up_to_operations for step in steps[:-1]]
    if None in tops or tops != sorted(set(tops), key=lambda top: top or 0):
        raise ValueError("up_to_operations must rise from step to step")
    amounts = [float(given["base_per_month"]), *(step.per_million for step in steps)]
    if not all(0 <= amount < math.inf for amount in amounts):
        raise ValueError("prices are 0 or more")
    billable = {str(name): int(weight) for name, weight in given["billable"].items()}
    return Prices(str(given.get("name", "prices")), str(given["currency"]), float(given["base_per_month"]), steps, billable)
