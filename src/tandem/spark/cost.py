"""The documented name of `analytics.cost`."""

from tandem.spark.analytics.cost import cost

__all__ = ["cost"]
