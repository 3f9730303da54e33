"""What survives the daemon: this boot's promises, and what the operator set."""
