"""What the daemon measures: driver samples, usage by container, dead processes."""
