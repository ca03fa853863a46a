"""The documented name of `analytics.bill`: arithmetic only, no Spark needed."""

from tandem.spark.analytics.bill import Cost, Counted, Idle, Month, Operations, Scenario, bill, idle_cost

__all__ = ["Cost", "Counted", "Idle", "Month", "Operations", "Scenario", "bill", "idle_cost"]
