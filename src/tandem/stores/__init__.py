"""Engines behind the ports of the broker: what is remembered, and where."""

from tandem.stores.memory import MemoryStore, Shelf
from tandem.stores.settings import StoreSettings

__all__ = ["MemoryStore", "Shelf", "StoreSettings"]
