"""The composition root: reads settings, wires the rooms together, prints, exits."""
