"""Static files of the web page; see gateway/http/pages.py."""
