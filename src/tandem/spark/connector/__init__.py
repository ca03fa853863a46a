"""`format("servicebus")`: reads and writes queues and topics, in batches and as a stream."""
