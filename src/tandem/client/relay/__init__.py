"""Both sides of a relay: listeners, senders, pairs of endpoints, and TCP through them."""
