"""Doubles and tools for tests, shipped to users."""
