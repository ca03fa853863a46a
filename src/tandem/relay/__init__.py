"""The relay: hybrid connections, whose listeners and senders meet here. Knows neither queues nor journals."""
