"""The answers to read requests. This package changes no state."""
