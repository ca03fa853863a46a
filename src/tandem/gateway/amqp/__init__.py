"""The AMQP door: connections, links and request nodes over one namespace."""
