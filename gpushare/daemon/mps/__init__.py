"""NVIDIA's Multi-Process Service: the client of one control daemon of one card."""
