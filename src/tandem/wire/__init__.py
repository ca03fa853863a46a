"""The only byte pump: sockets, TLS and WebSocket around the sans-IO engine."""
