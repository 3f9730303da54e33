# SPDX-License-Identifier: Apache-2.0
"""Pause, resume and stop on real containers: some with a group of v2, others of v1 alone."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushare.daemon.freezer import FREEZER, cgroup_freezer
from gpushare.daemon.identity.processes import Cgroups, cgroups_of, name_of
from tests.stack import Stack
from tests.stack.bundle import Bundle, busybox
from tests.system.hostile.container import RuntimeContainer, RuntimeNamespace
from tests.system.waiting import wait_until

#: Waits for its end, and can tell what it was told.
TOLD = "trap 'exit 7' TERM; while :; do busybox sleep 0.02; done"


@contextmanager
def script(stack: Stack, text: str) -> Iterator[tuple[Bundle, subprocess.Popen[bytes]]]:
    """Run a shell script as a container; yields it and its runtime."""
    args = ["/bin/busybox", "sh", "-c", f"alias busybox=/bin/busybox; {text}"]
    bundle = Bundle(stack, quota={"memory": "1GiB"}, args=args, files=busybox())
    words = bundle.argv("run", "--bundle", str(bundle.path), bundle.id)
    with subprocess.Popen(words, env=stack.environment, stdin=subprocess.DEVNULL) as running:
        try:
            wait_until(lambda: _is_in_its_loop((bundle.row() or {"pid": 0})["pid"]))
            yield bundle, running
        finally:
            bundle.remove()
            running.wait()


def _is_in_its_loop(pid: int) -> bool:
    """Whether the shell has set its traps: a signal that comes before them is lost."""
    if name_of(pid) != "busybox":
        return False
    return Path(f"/proc/{pid}/task/{pid}/children").read_text() != ""


def is_frozen(bundle: Bundle) -> bool:
    """Whether the kernel has the tenant's group frozen, for whatever reason."""
    found = bundle.tenant
    paths = cgroups_of(found["pid"])
    name = "" if paths[""] != "/" else FREEZER
    group = cgroup_freezer(f"{name}:{paths[name]}", Cgroups.mounted())
    return group is not None and group.is_set()


@pytest.mark.gate
def test_a_paused_container_stays_paused_if_the_daemon_dies(stack: Stack) -> None:
    bundle, other = (Bundle(stack, quota={"memory": "4GiB"}) for _ in range(2))
    with bundle.started() as tenant, other.started() as beside:
        shown = stack.client.pause(bundle.id, "card 0 is looked at")
        [held] = shown["interventions"]
        assert (held["by"], held["reason"]) == ("operator", "card 0 is looked at")
        assert shown["warnings"][0].endswith("resumes it")
        stack.end_daemon()
        assert beside.ask("info")["total"] == 4 << 30
        stack.start_daemon()
        assert [held["by"] for held in bundle.tenant["interventions"]] == ["operator"]
        assert is_frozen(bundle)
        tenant.tell("info")
        assert stack.client.resume(bundle.id)["interventions"] == []
        assert tenant.answer("info")["total"] == 4 << 30


@pytest.mark.gate
@pytest.mark.parametrize("paused", [False, True])
def test_a_stopped_container_may_end_by_itself(stack: Stack, paused: bool) -> None:
    with script(stack, TOLD) as (bundle, running):
        if paused:
            stack.client.pause(bundle.id)
        shown = stack.client.stop(bundle.id, "TERM", 600)
        assert [held["by"] for held in shown["interventions"]] == ["stop"]
        assert running.wait() == 7


def test_under_v1_a_stop_reaches_a_frozen_container() -> None:
    with Stack() as stack:
        v1 = RuntimeNamespace(stack)  # where containers have no group of v2
        stack.start_daemon()
        bundle = RuntimeContainer(v1, "runc")
        with bundle.started() as tenant:
            v1.client.pause(bundle.id)
            v1.client.stop(bundle.id, "KILL", 0)
            assert tenant.wait() != 0
        v1.assert_empty()
        v1.close()
