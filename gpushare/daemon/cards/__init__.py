"""The cards and their driver: what is there, what it can promise, what a context takes of it."""
