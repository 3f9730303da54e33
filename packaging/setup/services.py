# SPDX-License-Identifier: Apache-2.0
"""Prevents an installation of packages from starting or enabling services.

A daemon's Debian package starts it (through invoke-rc.d, which consults policy-rc.d) and enables it
for the next boot (through deb-systemd-helper and update-rc.d, which consult nothing). Therefore,
starting is denied during the installation, and enabling is undone for services that were disabled.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

MARK = "# gpushare's set-up: gone as soon as its packages are installed"
DENY = f"#!/bin/sh\n{MARK}\nexit 101\n"  # 101: action forbidden by policy


@contextmanager
def none_started(policy: Path = Path("/usr/sbin/policy-rc.d")) -> Iterator[None]:
    """Deny every service start within the block, and restore the machine's own policy after it.

    The machine's policy is renamed and renamed back, so that it stays the same file. If power fails
    in between, the next call finds the renamed file and restores it first.
    """
    aside = policy.with_name(policy.name + ".before-gpushare")
    _restore(policy, aside)
    if os.path.lexists(policy):
        policy.rename(aside)
    try:
        policy.write_text(DENY)
        policy.chmod(0o755)
        yield
    finally:
        _restore(policy, aside)


def _restore(policy: Path, aside: Path) -> None:
    if os.path.lexists(aside):
        aside.replace(policy)
    elif policy.is_file() and MARK in policy.read_text(errors="replace"):
        policy.unlink()


def disable(link: Path) -> None:
    """Disable the service that `link` enables, so that its package also records it as disabled."""
    if link.parent.suffix in {".wants", ".requires"}:
        command = ("deb-systemd-helper", "disable", link.name)
    else:
        command = ("update-rc.d", link.name[3:], "disable")
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # Neither handles a link that a maintainer script created itself.
    link.unlink(missing_ok=True)


@contextmanager
def none_enabled(
    etc: Path = Path("/etc"), undo: Callable[[Path], None] = disable
) -> Iterator[None]:
    """Disable, after the block, every unit and init script that the block enabled."""
    before = _enabled(etc)
    try:
        yield
    finally:
        for link in sorted(_enabled(etc) - before):
            undo(link)


def _enabled(etc: Path) -> frozenset[Path]:
    """Return the links through which systemd and sysvinit start services at boot."""
    system = etc / "systemd" / "system"
    links = [link for pattern in ("*.wants/*", "*.requires/*") for link in system.glob(pattern)]
    links += etc.glob("rc[2-5].d/S[0-9][0-9]*")
    return frozenset(links)
