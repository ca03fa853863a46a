"""Static files of the web page; see gateway/mounts.py."""
