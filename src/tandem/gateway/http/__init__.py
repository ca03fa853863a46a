"""The HTTP door: administration in ATOM, sending and receiving over REST, the operator's pages."""
