# SPDX-License-Identifier: Apache-2.0
"""Memory that one container hands to another: each is charged, and neither gets past its quota."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushare.client import Client
from gpushare.verify import ProbeTenant
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.system.waiting import wait_until

from .conftest import is_frozen, steps

GIB = 1 << 30
MIB = 1 << 20
CONTEXT = 524 * MIB
PIECE = 1000 * MIB
OUT_OF_MEMORY = 2
PROGRAM = "/bin/sharer"
ROOT = Path(__file__).parents[3]
#: Of the receiver, in a folder that both containers mount.
BOX = "/shared/box"


@pytest.fixture(scope="session")
def sharer(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """sharer.c, for the images of the tests."""
    output = tmp_path_factory.mktemp("sharer") / "sharer"
    source = Path(__file__).with_name("sharer.c")
    flags = ("-std=gnu11", "-D_GNU_SOURCE", "-O1", f"-I{ROOT}/libhook/include")
    subprocess.run(["gcc", *flags, str(source), "-o", str(output), "-ldl"], check=True)
    return output.read_bytes()


class SharedFolderPair:
    """Two containers with 2 GiB each that have a folder in common."""

    def __init__(self, stack: Stack, program: bytes, *library: str) -> None:
        self.stack = stack
        self.client = Client(stack.socket)
        self.bundles = [self._bundle(program, library) for _ in range(2)]
        self.shared = stack.root / "shared" / self.bundles[0].id
        self.shared.mkdir(parents=True)
        for bundle in self.bundles:
            mount = {"destination": "/shared", "source": str(self.shared), "type": "bind"}
            bundle.config["mounts"].append({**mount, "options": ["bind", "rw"]})
            bundle.save()

    def _bundle(self, program: bytes, library: tuple[str, ...]) -> Bundle:
        quota = {"memory": "2GiB"}
        args = (PROGRAM, *library)
        return Bundle(self.stack, quota=quota, args=args, files={PROGRAM: program})

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


@pytest.mark.parametrize("way", ["cuMemCreate", "pool"])
def test_shared_memory_is_charged_to_both_containers(pair: SharedFolderPair, way: str) -> None:
    with pair.running() as (maker, taker):
        if way == "pool":
            assert maker.ask(f"pool {GIB} {BOX}")["code"] == 0
            assert taker.ask("pooled")["code"] == 0
        else:
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


def test_a_buffer_that_another_container_opens_by_ipc_is_charged_to_both(
    pair: SharedFolderPair,
) -> None:
    """The driver requires that they see each other's processes, as with `docker run --pid`."""
    maker, taker = pair.bundles
    with maker.run() as one:
        assert one.start()["code"] == 0
        for space in taker.config["linux"]["namespaces"]:
            if space["type"] == "pid":
                space["path"] = f"/proc/{maker.tenant['pid']}/ns/pid"
        taker.save()
        with taker.run() as other:
            assert other.start()["code"] == 0
            assert one.ask(f"alloc {GIB}")["code"] == 0
            assert other.ask(f"open {one.ask('get')['handle']}")["code"] == 0
            assert (charged(one), charged(other)) == (GIB, GIB)
            assert one.ask("free")["code"] == 0
            wait_until(lambda: charged(one) == 0)
            assert charged(other) == GIB
            assert other.ask(f"alloc {GIB}")["code"] == OUT_OF_MEMORY
    assert [steps(bundle) for bundle in pair.bundles] == [[], []]
    taker.remove()
    maker.remove()


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


def test_processes_that_each_map_other_memory_of_another_container_are_frozen(
    pair: SharedFolderPair,
) -> None:
    """Imports of a container count once, as if all its processes mapped the same.

    These map different memory, whose maker has released it, so that it is in no quota. What the
    maker still exports explains as much for each of them, but the card shows that it is not that.
    """
    maker, taker = pair.bundles
    with maker.run() as one, taker.run() as first:
        assert (one.start()["code"], first.start()["code"]) == (0, 0)
        pair.client.set(taker.id, memory="4GiB")
        assert one.ask(f"create {480 * MIB}")["code"] == 0
        assert one.ask("keep")["code"] == 0
        argv = taker.argv("exec", taker.id, PROGRAM)
        sessions = [ProbeTenant(str(at), argv, pair.stack.environment) for at in range(6)]
        try:
            for at, session in enumerate(sessions):
                assert session.start()["code"] == 0
                assert session.ask(f"listen {BOX}{at}")["code"] == 0
            for at, session in enumerate(sessions):
                assert one.ask(f"create {PIECE}")["code"] == 0
                assert one.ask(f"send {BOX}{at}")["code"] == 0
                session.tell("take")
                session.tell(f"map {PIECE}")
                assert one.ask("drop")["code"] == 0
            wait_until(lambda: is_frozen(taker))
            assert steps(maker) == []
        finally:
            pair.client.stop(taker.id, "KILL", 0)
            for session in sessions:
                session.close()
    for bundle in pair.bundles:
        bundle.remove()
