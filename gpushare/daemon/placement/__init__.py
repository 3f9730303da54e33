"""Which cards a request gets: pure."""
