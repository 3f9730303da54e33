"""A tenant's life: requested, reserved, set up, bound to a process, released."""
