"""Who is who: processes and cgroups, names of containers, the containers of one pod."""
