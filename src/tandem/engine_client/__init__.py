"""Our AMQP engine as a client, without asyncio and without the SDK: for Spark tasks and commands, with messages as rows for them."""
