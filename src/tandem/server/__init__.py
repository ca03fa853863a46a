"""The process around the broker: what it is made of, what drives it, who may come in, what it counts."""
