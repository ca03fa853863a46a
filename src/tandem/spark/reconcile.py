"""The documented name of `analytics.reconcile`."""

from tandem.spark.analytics.reconcile import EntityCounts, Finding, Reconciliation, reconcile

__all__ = ["EntityCounts", "Finding", "Reconciliation", "reconcile"]
