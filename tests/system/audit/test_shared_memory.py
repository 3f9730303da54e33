# SPDX-License-Identifier: Apache-2.0
"""Memory that one container hands to another: each is charged, and neither gets past its quota."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushare.verify.runners import ProbeTenant
from tests.compiled import compile_c
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.system.waiting import wait_until

from .conftest import is_frozen, steps

GIB = 1 << 30
MIB = 1 << 20
CONTEXT = 524 * MIB
OUT_OF_MEMORY = 2
PROGRAM = "/bin/sharer"
#: Of the receiver, in a folder that both containers mount.
BOX = "/shared/box"


@pytest.fixture(scope="session")
def sharer(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """sharer.c, for the images of the tests."""
    output = tmp_path_factory.mktemp("sharer") / "sharer"
    source = Path(__file__).with_name("sharer.c")
    return compile_c(output, source).read_bytes()


class SharedFolderPair:
    """Two containers with 2 GiB each that have a folder in common."""

    def __init__(self, stack: Stack, program: bytes) -> None:
        self.stack = stack
        self.client = stack.client
        self.bundles = [self._bundle(program) for _ in range(2)]
        self.shared = stack.root / "shared" / self.bundles[0].id
        self.shared.mkdir(parents=True)
        for bundle in self.bundles:
            mount = {"destination": "/shared", "source": str(self.shared), "type": "bind"}
            bundle.config["mounts"].append({**mount, "options": ["bind", "rw"]})
            bundle.save()

    def _bundle(self, program: bytes) -> Bundle:
        quota = {"memory": "2GiB"}
        return Bundle(self.stack, quota=quota, args=(PROGRAM,), files={PROGRAM: program})

    @contextmanager
    def running(self) -> Iterator[tuple[ProbeTenant, ProbeTenant]]:
        """Run both; the second receives what the first sends."""
        maker, taker = self.bundles
        with maker.run() as one, taker.run() as other:
            assert (one.start()["code"], other.start()["code"]) == (0, 0)
            assert other.ask(f"listen {BOX}")["code"] == 0
            yield one, other
        for bundle in self.bundles:
            bundle.remove()


@pytest.fixture
def pair(audited: Stack, sharer: bytes) -> SharedFolderPair:
    return SharedFolderPair(audited, sharer)


def charged(tenant: ProbeTenant) -> int:
    """Return what is charged beside the context, as the container sees it."""
    info = tenant.ask("info")
    return int(info["total"] - info["free"] - CONTEXT)


def test_shared_memory_is_charged_to_both_containers(pair: SharedFolderPair) -> None:
    with pair.running() as (maker, taker):
        assert maker.ask(f"create {GIB}")["code"] == 0
        assert maker.ask(f"send {BOX}")["code"] == 0
        assert taker.ask("take")["code"] == 0
        assert taker.ask(f"map {GIB}")["code"] == 0
        assert (charged(maker), charged(taker)) == (GIB, GIB)
        assert maker.ask(f"alloc {GIB}")["code"] == OUT_OF_MEMORY
        assert taker.ask(f"alloc {GIB}")["code"] == OUT_OF_MEMORY
        maker.close()
        wait_until(lambda: pair.bundles[0].row() is None)
        assert charged(taker) == GIB
        assert taker.ask(f"alloc {GIB}")["code"] == OUT_OF_MEMORY
        assert taker.ask(f"alloc {GIB // 4}")["code"] == 0
    assert steps(pair.bundles[1]) == []


def test_a_container_that_hoards_memory_of_another_is_frozen(pair: SharedFolderPair) -> None:
    """One allocates and releases within its quota; the other keeps it all, and maps none of it.

    The library charges an import when it is mapped. The driver counts it at once.
    """
    with pair.running() as (maker, taker):
        for _ in range(8):
            assert maker.ask(f"create {GIB}")["code"] == 0
            assert maker.ask(f"send {BOX}")["code"] == 0
            taker.tell("take")
            assert maker.ask("drop")["code"] == 0
        wait_until(lambda: is_frozen(pair.bundles[1]))
        assert steps(pair.bundles[0]) == []
        pair.client.stop(pair.bundles[1].id, "KILL", 0)
        wait_until(lambda: pair.bundles[1].row() is None)
        assert maker.ask(f"alloc {GIB}")["code"] == 0
