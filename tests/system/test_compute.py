# SPDX-License-Identifier: Apache-2.0
"""What `gpushare ps` says of compute is what happens, and what an operator sets stays set."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpushare.verify.image import PROGRAM
from gpushare.verify.runners import ProbeTenant as Program
from tests.stack import Stack
from tests.stack.bundle import Bundle

from .waiting import wait_until

SPIN = "spin 1000000 100"  # a hundred kernels of a millisecond


def bundle(stack: Stack, *args: str, **quota: str) -> Bundle:
    return Bundle(stack, quota={"memory": "4GiB", **quota}, args=[PROGRAM, *args])


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


def throttled(one: Bundle) -> float:
    [card] = one.tenant["cards"]
    return card["compute"]["throttled"]["1s"] or 0.0


@pytest.mark.gate
def test_of_two_shares_the_larger_one_is_given_more(stack: Stack) -> None:
    """By the counters of the gate, which are seconds of the card: no clock is compared with it."""
    small, large = bundle(stack, cores="10"), bundle(stack, cores="60")
    with small.started() as first, large.started() as second, busy(first), busy(second):
        wait_until(lambda: min(gpu_seconds(small), gpu_seconds(large)) > 0)
        begun = gpu_seconds(small), gpu_seconds(large)
        wait_until(lambda: gpu_seconds(small) > begun[0] + 0.2)
        assert gpu_seconds(large) - begun[1] > gpu_seconds(small) - begun[0]
        wait_until(lambda: throttled(small) > 0)


def gpu_seconds(one: Bundle) -> float:
    [row] = [row for row in one.stack.client.metrics().tenants if row["id"] == one.id]
    return row["cards"][0]["gpu_seconds"]
