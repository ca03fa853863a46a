"""The two doors of a namespace, AMQP and HTTP, and the verbs behind both."""
