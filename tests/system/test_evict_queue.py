# SPDX-License-Identifier: Apache-2.0
"""Starts with a ticket, evicted containers and time limits, with real processes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpushare.client import Client
from gpushare.queue_client import QueueClient
from tests.stack import Stack
from tests.system.test_evict import configure, holding, is_intact, row, state, waits
from tests.system.waiting import wait_until

LIMIT_SECONDS = 60
SEED = 7


@pytest.fixture
def own() -> Iterator[Stack]:
    with Stack(cards=1) as made:
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
    configure(own, idle={"after": "1h", "action": "evict"})
    client = QueueClient(own.socket)
    with holding(own, "100GiB") as (notebook, tenant):
        with waiting_command(own, "100GiB") as job:
            wait_until(lambda: [one["state"] for one in client.queue()] == ["waiting"])
            assert state(own, notebook) == ""
            configure(own, idle={"after": "1s", "action": "evict"})
            assert is_up(job)
            assert state(own, notebook) == "evicted"
            tenant.tell(f"check {SEED}")
            wait_until(lambda: waits(own, notebook))
            wait_until(lambda: [one["kind"] for one in client.queue()] == ["restore"])
            (entry,) = client.queue()
            assert (entry["name"], entry["position"]) == (row(own, notebook)["name"], 1)
            listed = subprocess.run(
                [*own.cli, "queue"], capture_output=True, text=True, check=True, env=own.environment
            )
            assert "restore 100 GiB" in listed.stdout
            job.communicate(timeout=LIMIT_SECONDS)
        answer = tenant.answer("check")
        assert (answer["code"], answer["different"]) == (0, 0)


def test_starts_do_not_keep_an_evicted_container_out_for_ever(own: Stack) -> None:
    configure(own, queue={"max_overtakes": 1})
    client = QueueClient(own.socket)
    with holding(own, "60GiB") as (bundle, tenant):
        client.evict(bundle.id)
        with holding(own, "60GiB"), waiting_command(own, "50GiB") as second:
            assert is_up(second)
            tenant.tell(f"check {SEED}")
            wait_until(lambda: waits(own, bundle))
            with waiting_command(own, "1GiB") as small:
                assert is_up(small)
                wait_until(lambda: any(one["is_overdue"] for one in client.queue()))
                with waiting_command(own, "60GiB") as late:
                    wait_until(lambda: len(client.queue()) == 2)
                    second.communicate(timeout=LIMIT_SECONDS)
                    answer = tenant.answer("check")
                    assert (answer["code"], answer["different"]) == (0, 0)
                    assert [one["kind"] for one in client.queue()] == ["command"]
                    late.kill()


def test_the_time_of_an_evicted_container_ends_while_its_program_waits(
    own: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its first process ignores SIGTERM, as one of a container does, and is killed 30 s later.
    monkeypatch.setattr("tests.system.waiting.PATIENCE_SECONDS", 120.0)
    configure(own)
    client = Client(own.socket)
    with holding(own, "100GiB") as (bundle, tenant):
        client.evict(bundle.id)
        with holding(own, "100GiB") as (_, other):
            tenant.tell(f"check {SEED}")
            wait_until(lambda: waits(own, bundle))
            client.set(bundle.id, time_limit="1s")  # counted from its start, evicted or not
            wait_until(lambda: all(one["id"] != bundle.id for one in client.tenants()))
            assert is_intact(other)
        events = {one["event"]: one["fields"] for one in client.history(bundle.id)}
        assert events["tenant-stop-requested"]["by"] == "time-limit"
        assert "tenant-restored" not in events
