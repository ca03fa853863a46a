"""What a namespace holds: queues, topics, subscriptions, whole or in fragments."""
