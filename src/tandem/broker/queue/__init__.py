"""One queue: its rows, its facts, who gets what."""
