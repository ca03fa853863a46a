"""Brokers, clients, disks and a network in one process and in virtual time: `python -m tandem.simulator --seed 7`."""
