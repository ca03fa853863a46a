"""The documented name of `analytics.bill`: arithmetic only, no Spark needed."""

from tandem.spark.analytics.bill import Cost, Counted, IdleCost, Month, Operations, Scenario, bill, idle_cost

__all__ = ["Cost", "Counted", "IdleCost", "Month", "Operations", "Scenario", "bill", "idle_cost"]
