# SPDX-License-Identifier: Apache-2.0
"""Reads the facts of this machine on which `plan.py` bases its decisions."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import plan

# Debian installs the engines' daemons in sbin, which is not on every user's PATH.
SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def search_path(tools: Path) -> str:
    """Return PATH with sbin and, last, the programs that an earlier set-up unpacked."""
    parts = os.environ.get("PATH", os.defpath).split(os.pathsep)
    parts += [folder for folder in SBIN if folder not in parts]
    parts.append(str(tools / "bin"))
    return os.pathsep.join(parts)


def read(tools: Path, parts: Sequence[str]) -> plan.Facts:
    """Return this machine's facts; earlier set-ups unpacked their packages into `tools`."""
    path = search_path(tools)
    programs = {need.program: shutil.which(need.program, path=path) for need in plan.needs(parts)}
    if shutil.which("apt-get", path=path) is None:
        return plan.Facts(programs, frozenset(), frozenset(), apt=False)
    return plan.Facts(programs, _installed(), frozenset() if all(programs.values()) else _known())


def simulate(packages: Sequence[str]) -> plan.Simulation | None:
    """Return what installing `packages` would do, by apt's simulation; None if apt refuses."""
    done = subprocess.run(
        ["apt-get", "--simulate", "--no-install-recommends", "install", *packages],
        capture_output=True,
        text=True,
        env=os.environ | {"LC_ALL": "C"},
        check=False,
    )
    return plan.parse_simulation(done.stdout) if done.returncode == 0 else None


def _installed() -> frozenset[str]:
    listing = subprocess.run(
        ["dpkg-query", "--show", "--showformat", "${db:Status-Status} ${Package}\n"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    words = (line.split() for line in listing.splitlines())
    return frozenset(word[1] for word in words if word[0] == "installed")


def _known() -> frozenset[str]:
    """Return the packages of NEEDS for which apt has a candidate."""
    names = sorted({name for need in plan.NEEDS for name in need.packages})
    policy = subprocess.run(
        ["apt-cache", "policy", *names],
        capture_output=True,
        text=True,
        env=os.environ | {"LC_ALL": "C"},
        check=True,
    ).stdout
    known: set[str] = set()
    name = ""
    for line in policy.splitlines():
        if not line.startswith(" "):
            name = line.rstrip(":")
        elif line.strip().startswith("Candidate:") and "(none)" not in line:
            known.add(name)
    return frozenset(known)
