# SPDX-License-Identifier: Apache-2.0
"""What `gpushare ps` says of compute is what happens, and what an operator sets stays set."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushare.client import Client
from gpushare.protocol import CardStatus, TenantStatus
from gpushare.verify.image import PROGRAM
from gpushare.verify.runners import ProbeTenant as Program
from tests.stack import Stack
from tests.stack.bundle import Bundle

from .waiting import wait_until

PRIVATE = "/opt/gpushare/driver/libcuda.so.1"
SPIN = "spin 1000000 100"  # a hundred kernels of a millisecond

Started = Callable[..., Bundle]


@pytest.fixture
def bundle(stack: Stack) -> Iterator[Started]:
    """Return what makes a bundle of a quota; it is removed after the test."""
    made: list[Bundle] = []

    def make(*args: str, **quota: str) -> Bundle:
        asked = {"memory": "4GiB", **quota}
        made.append(Bundle(stack, quota=asked, args=[PROGRAM, *args]))
        return made[-1]

    yield make
    for one in made:
        one.remove()


@contextmanager
def busy(tenant: Program) -> Iterator[None]:
    """Keep a tenant at work; a hundred kernels follow one another."""
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            tenant.ask(SPIN)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def gpushare(stack: Stack, *words: str) -> str:
    return subprocess.run(
        [*stack.cli, *words], check=True, capture_output=True, text=True, env=stack.environment
    ).stdout


def row(stack: Stack, one: Bundle) -> TenantStatus:
    return Client(stack.socket).tenant(one.id)


def got(stack: Stack, one: Bundle, window: str = "1s") -> float:
    [card] = row(stack, one)["cards"]
    return card["compute"]["cores_used"][window] or 0.0


def throttled(stack: Stack, one: Bundle) -> float:
    [card] = row(stack, one)["cards"]
    return card["compute"]["throttled"]["1s"] or 0.0


def cards(stack: Stack) -> list[CardStatus]:
    found: list[CardStatus] = json.loads(gpushare(stack, "ls", "--json"))
    return found


def test_a_fixed_share_gets_its_request_and_ps_shows_it(stack: Stack, bundle: Started) -> None:
    one = bundle(cores="30")
    with one.run() as tenant:
        tenant.start()
        with busy(tenant):
            wait_until(lambda: got(stack, one, "10s") == pytest.approx(30, abs=3))
            assert row(stack, one)["cards"][0]["compute"]["cores_source"] == "gate"
            # A busy machine keeps the program from the gate for a while: seconds with less waiting.
            wait_until(lambda: throttled(stack, one) == pytest.approx(0.7, abs=0.1))
            gpushare(stack, "set", one.id, "--cores", "60")
            wait_until(lambda: got(stack, one) == pytest.approx(60, abs=6))


def test_a_tenant_alone_is_not_counted_and_has_the_drivers_figure(
    stack: Stack, bundle: Started
) -> None:
    one = bundle()
    with one.run() as tenant:
        tenant.start()
        with busy(tenant):
            wait_until(lambda: got(stack, one) > 80)
            spent = row(stack, one)["cards"][0]["compute"]
            assert (spent["cores_source"], spent["gate"], spent["windows"]) == ("driver", "open", 0)
            assert "~" in gpushare(stack, "ps")


def test_a_cards_policy_applies_to_present_and_later_tenants(stack: Stack, bundle: Started) -> None:
    first, second = bundle(cores="30"), bundle(cores="20")
    with first.run() as tenant:
        tenant.start()
        with busy(tenant):
            wait_until(lambda: got(stack, first) == pytest.approx(30, abs=6))
            gpushare(stack, "card", "policy", "0", "burst-share")
            try:
                wait_until(lambda: got(stack, first) > 80)
                with second.run() as other:
                    other.start()
                    assert row(stack, second)["policy"] == "fixed-share"
                    assert row(stack, second)["cards"][0]["policy"] == "burst-share"
            finally:
                gpushare(stack, "card", "policy", "0", "--reset")
            wait_until(lambda: got(stack, first) == pytest.approx(30, abs=6))
    assert cards(stack)[0]["policy"] == ""


def test_set_values_hold_when_the_same_container_starts_again(
    stack: Stack, bundle: Started
) -> None:
    one = bundle(cores="30")
    with one.run() as tenant:
        tenant.start()
        words = ("--cores", "40", "--policy", "burst-share", "--class", "online")
        gpushare(stack, "set", one.id, *words)
    wait_until(lambda: not Client(stack.socket).tenants())
    with one.run() as tenant:
        tenant.start()
        found = row(stack, one)
        assert (found["policy"], found["online"]) == ("burst-share", True)
        assert found["cards"][0]["cores"] == 40


def test_a_program_with_a_driver_of_its_own_is_seen_by_the_drivers_figure(
    stack: Stack, bundle: Started
) -> None:
    one = bundle("--library", PRIVATE, cores="30")
    with one.run() as tenant:
        tenant.start()
        with busy(tenant):
            wait_until(lambda: row(stack, one)["warnings"] != [])
            [warning] = row(stack, one)["warnings"]
            assert "charged 0 %, the driver measured" in warning
            assert warning.endswith("work bypasses the launch gate")
            assert "work bypasses the launch gate" in gpushare(stack, "ps")


def test_nothing_is_claimed_while_the_scheduler_does_not_answer(
    stack: Stack, bundle: Started
) -> None:
    one = bundle(cores="30")
    with one.run() as tenant:
        tenant.start()
        with busy(tenant):
            wait_until(lambda: got(stack, one) > 20)
            pid = scheduler(stack)
            os.kill(pid, signal.SIGSTOP)
            try:
                wait_until(lambda: row(stack, one)["cards"][0]["cores_used_1s"] is None)
                assert "?/30 %" in gpushare(stack, "ps")
            finally:
                os.kill(pid, signal.SIGCONT)
            wait_until(lambda: got(stack, one) > 20)


def scheduler(stack: Stack) -> int:
    """Return the process of the stack's scheduler."""
    socket = str(stack.root / "run" / "scheduler.sock").encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # ended meanwhile
        if socket in words and words[0].endswith(b"gpushare-scheduler"):
            return int(entry.name)
    raise AssertionError("there is no scheduler")
