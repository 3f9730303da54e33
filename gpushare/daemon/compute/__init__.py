"""Shares of compute, and the connection to the scheduler that enforces them."""
