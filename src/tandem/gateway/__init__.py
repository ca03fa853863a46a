"""Where frames meet queues: the only room that speaks both."""
