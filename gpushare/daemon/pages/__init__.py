"""What the daemon and a tenant's processes share: the two pages, the bell, and where they lie."""
