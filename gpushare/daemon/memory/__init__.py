"""Memory beyond the promise: what is lent, and the limits that the driver itself holds."""
