"""Outage defences for applications, written against a transport seam. The public names are in `tandem.aio` and `tandem`."""
