"""The control socket, its operations, and systemd notifications."""
