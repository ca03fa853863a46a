"""What lies under a protocol: which one a connection speaks, TLS, and WebSocket. Nothing here reads AMQP."""
