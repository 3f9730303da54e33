# SPDX-License-Identifier: Apache-2.0
"""What is in a stack besides its services: in its own folder, cgroup and processes only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gpushare.client import Client
from gpushare.errors import UserError
from tests.leftovers import cgroups_named

from .booted import Booted
from .stack import Stack


def remains(stack: Stack) -> list[str]:
    """Return what a test has left in `stack`, in words; empty if that is as it was when started."""
    if not stack.is_serving:
        return ["a gpushared that has ended"]
    try:
        known = [*_of_daemon(stack.client)]
    except UserError as error:
        known = [f"a gpushared that does not answer: {error}"]
    ended = [
        f"a {name} that has ended"
        for name, program in stack.programs
        if name in ("containerd", "dockerd") and program.process.poll() is not None
    ]
    return [*known, *ended, *_containers(stack.root), *_processes(stack)]


def _of_daemon(client: Client) -> Iterator[str]:
    yield from (f"tenant {row['name']}" for row in client.tenants())
    yield from (f"ticket {row['ticket']} of {row['name']}" for row in client.queue())
    yield from (f"claim {row['claim']}" for row in client.claims())
    yield from (f"setting {key} of a node label" for key in client.status()["node_settings"])
    for card in client.cards():
        if card["cordoned"]:
            yield f"card {card['index']} cordoned"
        if card["policy"]:
            yield f"policy {card['policy']} on card {card['index']}"
        if card["health"] != "ok":
            yield f"card {card['index']} unhealthy: {card['health']}"


def _containers(root: Path) -> Iterator[str]:
    """Yield those of runc, of docker, and the tasks of containerd: it has docker's, too."""
    for kind, folders in (
        ("runc", "runc/*"),
        ("docker", "docker/containers/*"),
        ("containerd", "containerd-state/io.containerd.runtime.v2.task/*/*"),
    ):
        yield from (f"container {path.name} of {kind}" for path in root.glob(folders))


def _processes(stack: Stack) -> Iterator[str]:
    """Yield processes in the stack's cgroup, or with its folder in their environment."""
    # The cgroup of a booted place has systemd in it, and its services.
    folders = [] if isinstance(stack.place, Booted) else cgroups_named(stack.cgroup)
    inside: set[int] = set()
    for folder in folders:
        with suppress(OSError):  # it is being removed
            inside |= set(map(int, (folder / "cgroup.procs").read_text().split()))
    services = {program.process.pid for _, program in stack.programs}
    root = os.fsencode(stack.root)
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended
            if entry.name.isdigit() and int(entry.name) not in services | {os.getpid()}:
                is_ours = int(entry.name) in inside or root in (entry / "environ").read_bytes()
                if is_ours and not _serves(entry, services):
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    yield f"process {entry.name} ({words.strip()})"


def _serves(entry: Path, services: set[int]) -> bool:
    """Whether a process is a worker: of a service's session, or of one's that was restarted."""
    state, _, _, session, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
    return state == "Z" or int(session) in services
