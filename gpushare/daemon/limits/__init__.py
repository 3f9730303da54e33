"""Memory limits: the backends that enforce them, burst memory, the limits of the driver itself."""
