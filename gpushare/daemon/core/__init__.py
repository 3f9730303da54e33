"""The event loop, worker threads, the log, the clock and privileges."""
