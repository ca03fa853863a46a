"""Tandem: a bus that speaks Azure Service Bus, and the defences for the day it is down."""

__version__ = "0.1.0"
