"""What journals, meters and event logs tell after an outage: the proof, the bill, the outages, one page about it all."""
