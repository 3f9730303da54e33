# SPDX-License-Identifier: Apache-2.0
"""A tenant attacks its pages, its socket and the daemon behind them, from within its container."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.system.waiting import wait_until

from .container import GIB, RuntimeContainer, RuntimeNamespace

ATTACKER = "/bin/attacker"


@pytest.fixture
def attack(compiled: Callable[..., Path]) -> bytes:
    return compiled("attacker", "-static").read_bytes()


@contextmanager
def attacking(
    place: RuntimeNamespace, runtime: str, program: bytes, what: str
) -> Iterator[IO[str]]:
    """Yield the output of a tenant that attacks until the end of the block."""
    container = RuntimeContainer(place, runtime, args=(ATTACKER, what), files={ATTACKER: program})
    with subprocess.Popen(
        container.argv("run", "--bundle", str(container.path), container.id),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=place.stack.environment,
    ) as running:
        assert running.stdout is not None
        try:
            yield running.stdout
        finally:
            container.remove()
    place.assert_empty()


def assert_served(place: RuntimeNamespace, runtime: str) -> None:
    """Another container comes, gets its part, and goes."""
    other = RuntimeContainer(place, runtime)
    with other.started() as tenant:
        assert tenant.ask("info")["total"] == GIB
        assert tenant.ask(f"alloc {GIB // 4}")["code"] == 0


@pytest.mark.gate
@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_tenant_cannot_change_its_grant_by_any_path(
    place: RuntimeNamespace, runtime: str, attack: bytes
) -> None:
    with attacking(place, runtime, attack, "grant") as said:
        assert said.read() == "done\n"


@pytest.mark.gate
def test_a_page_truncated_while_it_is_read_ends_no_program(
    place: RuntimeNamespace, runtime: str, attack: bytes
) -> None:
    with attacking(place, runtime, attack, "status") as said:
        assert said.read() == "done\n"
    assert_served(place, runtime)
    assert not [line for line in place.log_lines() if "traceback" in line]


@pytest.mark.gate
def test_a_flood_of_connections_descriptors_and_noise_delays_no_other_client(
    place: RuntimeNamespace, runtime: str, attack: bytes
) -> None:
    with attacking(place, runtime, attack, "flood") as said:
        assert said.readline() == "ready\n"
        for _ in range(3):
            assert_served(place, runtime)
    assert_served(place, runtime)
    assert not [line for line in place.log_lines() if "traceback" in line]


def test_a_tenant_that_holds_leases_and_locks_does_not_hold_a_new_daemon_up(
    own: RuntimeNamespace, attack: bytes
) -> None:
    """A daemon that is started again opens the pages, and an open waits for a lease to be given up.

    The kernel takes one away after 45 seconds (lease-break-time), from each tenant in turn.
    """
    with attacking(own, "runc", attack, "hold") as said:
        assert said.readline() == "ready\n"
        for _ in range(2):
            own.stack.end_daemon()
            # Without a daemon no other process has the files open: the moment for a lease.
            alone = time.monotonic_ns()
            tried = 0
            while tried <= alone:
                [word, when] = said.readline().split()
                assert word == "tried"
                tried = int(when)
            own.stack.start_daemon()
            assert_served(own, "runc")
            wait_until(lambda: len(own.rows()) == 1)
        assert "tenant-pages-lost" not in {line["event"] for line in own.log_lines()}
