"""The state that survives the daemon: this boot's allocations, and the operator's settings."""
