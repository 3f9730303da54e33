"""Identity: processes and cgroups, names of containers, which process is which tenant's."""
