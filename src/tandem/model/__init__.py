"""Nouns of the house: standard library only, imported by everybody, importing nobody."""
