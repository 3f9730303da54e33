# SPDX-License-Identifier: Apache-2.0
"""MPS with limits for each container, by the client with which gpushared commands it.

What simulator/README.md assumes of protocol 3, of static partitions and of each user's rights.
Each part has a control daemon of its own, in folders of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpushare.daemon.mps.program import (
    ClientRoute,
    MpsError,
    Protocol,
    TenantLimits,
    has_static_partitions,
    protocol_of,
)

from .driver import DriverPaths
from .mps import LIMIT, SECONDS, Part, RunningMps, measured
from .report import NotMeasured, ReportRow

USER = 65534  # nobody
VARIABLES = ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    """What the limits of containers do here, by protocol."""
    both: tuple[Part, ...] = (_attribute, _limits, _processes, _lists, _commands)
    yield from _parts(driver, 2, both)
    if has_static_partitions(driver.cuda_version):
        yield from _parts(driver, 2, (_partitions,), static=True)
    else:
        yield ReportRow("static partitions", missing=f"CUDA {driver.cuda_version_text} has none")
    if protocol_of(driver.version) == 3:
        parts = (*both, _changes, _default_namespace, _partitions, _without_partition)
        yield from _parts(driver, 3, parts)
    else:
        yield ReportRow("protocol 3", missing=f"driver {driver.version} has protocol 2")


def _parts(
    driver: DriverPaths, protocol: Protocol, parts: Sequence[Part], *, static: bool = False
) -> Iterator[ReportRow]:
    multiuser = os.geteuid() == 0
    for row in measured(driver, parts, protocol, static=static, multiuser=multiuser):
        yield ReportRow(**{**vars(row), "name": f"protocol {protocol}: {row.name}"})


def _sent(
    commanded: RunningMps, folder: Path, *arguments: str, commands: str = "", user: int = 0
) -> str:
    """Return what a command prints that is sent through a folder, by a user."""
    program = commanded.control.program
    under: Sequence[str] = ()
    if user:
        tool = shutil.which("setpriv")
        if tool is None or os.geteuid():
            raise NotMeasured("another user needs root and setpriv")
        under = (tool, f"--reuid={user}", "--clear-groups")
        if "GPUSHARE_SIM_DEVICE" in os.environ:
            # A simulated driver can lie in root's folder. Then permissions show nothing.
            under = (*under, "--inh-caps=+dac_override", "--ambient-caps=+dac_override")
    done = subprocess.run(
        [*under, str(program.program), *arguments],
        input=f"{commands}\n" if commands else "",
        env={**program.environment(), "CUDA_MPS_PIPE_DIRECTORY": str(folder)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return " ".join((done.stdout + done.stderr).split()) or f"exit status {done.returncode}"


def _add(commanded: RunningMps, name: str, limits: TenantLimits) -> ClientRoute:
    return commanded.control.add(name, limits, os.geteuid())


def _attribute(commanded: RunningMps) -> Iterator[ReportRow]:
    route = _add(commanded, "one", TenantLimits(LIMIT, 50))
    with commanded.client(route) as client:
        client.ask("begin")
        seen = client.ask("attribute")["in_mps"]
        yield ReportRow.claim("MPS_ENABLED is 1 in a client", seen == 1, seen)
    with commanded.client(ClientRoute(Path("/nonexistent"), {})) as client:
        client.ask("begin")
        seen = client.ask("attribute")["in_mps"]
        yield ReportRow.claim("MPS_ENABLED is 0 without a server", seen == 0, seen)


def _limits(commanded: RunningMps) -> Iterator[ReportRow]:
    one = _add(commanded, "one", TenantLimits(LIMIT, 50))
    other = _add(commanded, "other", TenantLimits(LIMIT // 2, 25))
    for name, route, size in (("one", one, LIMIT), ("other", other, LIMIT // 2)):
        with commanded.client(route) as client:
            seen = client.ask("begin")["multiprocessors"]
            yield ReportRow(f"container {name}: multiprocessors", seen)
            free = client.ask("info")["free"]
            held = free <= size
            yield ReportRow.claim(f"container {name}: free memory is within its limit", held, free)
    raised = dict(zip(VARIABLES, ("100", "0=64G"), strict=True))
    with commanded.client(one, **raised) as client:
        seen, free = client.ask("begin")["multiprocessors"], client.ask("info")["free"]
        held = seen < commanded.driver.multiprocessors and free <= LIMIT
        yield ReportRow.claim("the largest container cannot raise its limits", held, (seen, free))
    with commanded.client(one, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="10") as client:
        yield ReportRow("with 10 % in its environment", client.ask("begin")["multiprocessors"])
    wrong = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G,7=1G"}
    with commanded.client(one, **wrong) as client:
        client.ask("begin")
        free = client.ask("info")["free"]
        note = "" if free <= LIMIT else "it has no limit"
        yield ReportRow("one wrong entry in its environment: free", free, "bytes", note)


def _processes(commanded: RunningMps) -> Iterator[ReportRow]:
    """Whether the limit of memory is each process's, or their sum's."""
    route = _add(commanded, "one", TenantLimits(LIMIT, 50))
    with commanded.client(route) as first, commanded.client(route) as second:
        first.ask("begin")
        half = first.ask("info")["free"] * 3 // 4
        first.ask(f"linear {half}")
        second.ask("begin")
        seen = second.ask(f"linear {half}")
        kind = "of each process" if seen["code"] == 0 else "of the sum"
        yield ReportRow("the memory limit is", kind, detail=(str(seen),))


def _lists(commanded: RunningMps) -> Iterator[ReportRow]:
    route = _add(commanded, "one", TenantLimits(LIMIT, 50))
    with commanded.client(route) as client, commanded.client(route) as other:
        pid = client.ask("begin")["pid"]
        other.ask("begin")
        servers = commanded.control.servers()
        yield ReportRow("servers", "; ".join(f"{one.name} {one.state}" for one in servers))
        clients = {one.pid: one for one in commanded.control.clients()}
        yield ReportRow.claim("clients are listed by the host's PID", pid in clients, clients)
        if pid in clients:
            yield ReportRow("a client's container", clients[pid].tenant or "not listed")
            commanded.control.terminate(clients[pid])
            found = client.ask("synchronize")
            yield ReportRow("a client that was terminated", str(found["name"]))
        found = other.ask("synchronize")
        yield ReportRow.claim("the other one goes on", found["code"] == 0, found)


def _commands(commanded: RunningMps) -> Iterator[ReportRow]:
    """Whether a container can change limits through the folder that it has."""
    route = _add(commanded, "one", TenantLimits(LIMIT, 50))
    for name, user in (("another user", USER), ("root", 0)):
        own = commanded.control.program.pipe_folder
        if commanded.control.program.protocol == 2:
            change = "set_default_active_thread_percentage 100"
            said = _sent(commanded, route.pipe_folder, commands=change, user=user)
            left = commanded.command("get_default_active_thread_percentage")
        else:
            where = f"--server={route.pipe_folder.parent.name}"
            words = ("set", route.pipe_folder.name, where, "--active-thread-percentage=100")
            said = _sent(commanded, route.pipe_folder, "namespace", *words, user=user)
            left = _sent(commanded, own, "namespace", "list", "--format=csv")
        yield ReportRow(f"{name} sets 100 % through the container's folder", said, detail=(left,))


def _changes(commanded: RunningMps) -> Iterator[ReportRow]:
    route = _add(commanded, "one", TenantLimits(LIMIT, 50))
    with commanded.client(route) as client:
        client.ask("begin")
        for name, call in (
            ("change", lambda: commanded.control.change("one", TenantLimits(LIMIT, 25))),
            ("remove", lambda: commanded.control.remove("one")),
        ):
            try:
                call()
            except MpsError as error:
                yield ReportRow(f"{name} while it has a client", "refused", note=str(error))
            else:
                yield ReportRow(f"{name} while it has a client", "carried out")


def _default_namespace(commanded: RunningMps) -> Iterator[ReportRow]:
    route = _add(commanded, "one", TenantLimits(LIMIT, 50))
    with commanded.client(ClientRoute(route.pipe_folder.parent, {})) as client:
        found = client.ask("begin")
        yield ReportRow("in the default namespace", str(found.get("name", found)))
    with commanded.client(route) as client:
        seen = client.ask("begin").get("multiprocessors", 0)
        bound = commanded.driver.multiprocessors // 4
        yield ReportRow.claim("whose limits bind no other namespace", seen > bound, seen)


def _partitions(commanded: RunningMps) -> Iterator[ReportRow]:
    empty = commanded.control.partitions()
    yield ReportRow("chunks of the card", empty.total_chunks)
    yield ReportRow("multiprocessors of all chunks", empty.free_multiprocessors)
    chunks = max(empty.total_chunks // 2, 1)
    one = _add(commanded, "one", TenantLimits(LIMIT, 1, chunks=chunks))
    (part,) = commanded.control.partitions().partitions
    yield ReportRow(f"multiprocessors of {chunks} chunks", part.multiprocessors)
    with commanded.client(one) as client:
        seen = client.ask("begin").get("multiprocessors", 0)
        held = seen == part.multiprocessors
        yield ReportRow.claim("a client has those of its partition, at 1 %", held, seen)
        try:
            other = _add(commanded, "other", TenantLimits(LIMIT, 1, chunks=1))
        except MpsError as error:
            yield ReportRow("a partition beside a client", "refused", note=str(error))
            return
        yield ReportRow("a partition beside a client", "created")
        with commanded.client(other) as second:
            yield ReportRow("multiprocessors of 1 chunk", second.ask("begin")["multiprocessors"])
            yield ReportRow("a fault: the client that caused it", str(client.ask("trap")["name"]))
            time.sleep(1)  # for what the driver does meanwhile
            found = second.ask("synchronize")
            yield ReportRow("a fault: a client of another partition", str(found["name"]))


def _without_partition(commanded: RunningMps) -> Iterator[ReportRow]:
    _add(commanded, "one", TenantLimits(LIMIT, 50, chunks=1))
    other = _add(commanded, "other", TenantLimits(LIMIT, 50))
    with commanded.client(other) as client:
        found = client.ask("begin")
        seen = str(found.get("name") or f"{found['multiprocessors']} multiprocessors")
        yield ReportRow("a client without a partition beside one", seen)
