"""The documented name of `analytics.availability`."""

from tandem.spark.analytics.availability import Availability, Outage, PathAvailability, availability, read_events

__all__ = ["Availability", "Outage", "PathAvailability", "availability", "read_events"]
