"""Measurements: driver samples, usage by container, dead processes."""
