"""Evictions: a tenant's GPU memory goes to host memory, and back, by NVIDIA's checkpoint API."""
