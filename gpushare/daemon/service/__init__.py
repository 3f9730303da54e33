"""What serves: the main loop, the control socket and its operations, tenants' sockets, systemd."""
