"""`tandem demo`: two brokers, one of them killed under way, and the proof that nothing was lost."""
