# SPDX-License-Identifier: Apache-2.0
"""A start with a ticket beside an evicted container, with real processes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.stack import Stack
from tests.system.test_evict import OFTEN, holding, state, waits
from tests.system.waiting import wait_until

LIMIT_SECONDS = 60
SEED = 7


@pytest.fixture
def own() -> Iterator[Stack]:
    with Stack() as made:
        made.configure(idle={"after": "1h", "action": "evict"}, timing=OFTEN)
        made.start_daemon()
        yield made


@contextmanager
def waiting_command(stack: Stack, memory: str) -> Iterator[subprocess.Popen[str]]:
    """`gpushare run --wait` of a command that runs until its stdin ends."""
    words = ("--wait", "--memory", memory, "--name", "job", "--", "sh", "-c", "echo up; read _")
    with subprocess.Popen(
        [*stack.cli, "run", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=stack.environment,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def is_up(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    return process.stdout.readline() == "up\n"


def test_a_command_that_waits_has_a_container_evicted_once_that_is_idle(own: Stack) -> None:
    client = own.client
    with holding(own, "100GiB") as (notebook, tenant):
        with waiting_command(own, "100GiB") as job:
            wait_until(lambda: [one["state"] for one in client.queue()] == ["waiting"])
            assert state(notebook) == ""
            own.configure(idle={"after": "1s", "action": "evict"})
            assert is_up(job)
            assert state(notebook) == "evicted"
            tenant.tell(f"check {SEED}")
            wait_until(lambda: waits(notebook))
            wait_until(lambda: [one["kind"] for one in client.queue()] == ["restore"])
            (entry,) = client.queue()
            assert (entry["name"], entry["position"]) == (notebook.tenant["name"], 1)
            assert "restore 100 GiB" in own.gpushare("queue").stdout
            job.communicate(timeout=LIMIT_SECONDS)
        answer = tenant.answer("check")
        assert (answer["code"], answer["different"]) == (0, 0)


def test_the_time_of_an_evicted_container_ends_while_its_program_waits(own: Stack) -> None:
    client = own.client
    with holding(own, "100GiB") as (bundle, tenant):
        client.evict(bundle.id)
        with holding(own, "100GiB"):
            tenant.tell(f"check {SEED}")
            wait_until(lambda: waits(bundle))
            client.set(bundle.id, time_limit="1s")  # counted from its start, evicted or not
            wait_until(lambda: all(one["id"] != bundle.id for one in client.tenants()))
        events = {one["event"]: one["fields"] for one in client.history(bundle.id)}
        assert events["tenant-stop-requested"]["by"] == "time-limit"
        assert "tenant-restored" not in events
