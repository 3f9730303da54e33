"""A tenant's life: asked for, reserved, given its pages, bound to a process, released."""
