"""Rules of subscriptions: filters and actions, the SQL they are written in, and why one matched."""
