"""Freeze and thaw containers through their cgroups."""
