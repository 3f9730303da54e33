# SPDX-License-Identifier: Apache-2.0
"""Real containers give their GPU memory away, and go on with it as if nothing had happened."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpushare.client import DaemonUnreachable, RequestRefused
from gpushare.host.mounts import WITH_OWN_SHARED_MEMORY
from gpushare.verify.runners import ProbeTenant
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.system.waiting import wait_until

GIB = 1 << 30
MIB = 1 << 20
SEED = 7
#: A daemon looks at who waits for a restore this often.
OFTEN = {"reconcile_interval_seconds": 0.2}


@pytest.fixture
def own() -> Iterator[Stack]:
    with Stack(cards=2) as made:
        made.configure(timing=OFTEN)
        made.start_daemon()
        yield made


def state(bundle: Bundle) -> str:
    """Return the state of a container's eviction, "" if it is not evicted."""
    evicted = bundle.tenant["eviction"]
    return "" if evicted is None else evicted["state"]


def waits(bundle: Bundle) -> bool:
    """Whether a program of a container waits for its restore."""
    evicted = bundle.tenant["eviction"]
    return evicted is not None and evicted["waits_since"] is not None


@contextmanager
def holding(
    stack: Stack, memory: str, mib: int = 64, **quota: str
) -> Iterator[tuple[Bundle, ProbeTenant]]:
    """A running container with known contents in its GPU memory."""
    bundle = Bundle(stack, quota={"memory": memory, **quota})
    with bundle.started() as tenant:
        assert tenant.ask(f"alloc {mib * MIB}")["code"] == 0
        assert tenant.ask(f"write {SEED}")["code"] == 0
        yield bundle, tenant


def is_intact(tenant: ProbeTenant) -> bool:
    answer = tenant.ask(f"check {SEED}")
    return (answer["code"], answer["different"]) == (0, 0)


def available(stack: Stack, index: int = 0) -> int:
    return stack.client.cards()[index]["available_bytes"]


@pytest.mark.gate
def test_a_sleeping_container_gives_its_memory_to_another_and_continues(own: Stack) -> None:
    client = own.client
    with holding(own, "100GiB", devices="0") as (bundle, tenant):
        before = available(own)
        assert client.evict(bundle.id, "lunch")["id"] == bundle.id
        assert state(bundle) == "evicted"
        assert available(own) == before + 100 * GIB
        assert client.cards()[0]["evicted_bytes"] >= 64 * MIB
        with holding(own, "100GiB", devices="0") as (_, other):
            tenant.tell(f"check {SEED}")  # it waits: the card is full
            wait_until(lambda: waits(bundle))
            assert is_intact(other)
        answer = tenant.answer("check")  # the other one has ended
        assert (answer["code"], answer["different"]) == (0, 0)
        assert state(bundle) == ""
        assert available(own) == before
    events = [one["event"] for one in client.history(bundle.id)]
    assert "tenant-evicted" in events
    assert "tenant-restored" in events


@pytest.mark.gate
def test_a_call_gets_the_memory_back_at_once_where_there_is_room(own: Stack) -> None:
    with holding(own, "4GiB") as (bundle, tenant):
        for _ in range(3):
            own.client.evict(bundle.id)
            assert is_intact(tenant)
            assert state(bundle) == ""
        own.client.evict(bundle.id, hold=True)
        tenant.tell(f"check {SEED}")
        wait_until(lambda: waits(bundle))
        assert own.client.restore(bundle.id)["eviction"] is None
        assert tenant.answer("check")["different"] == 0


#: Runs a command where /dev has a node for each of two cards, which is /dev/null here.
_TWO_NODES = """
mount -t tmpfs none /mnt && cp -a /dev/null /dev/zero /dev/urandom /mnt && mkdir /mnt/shm &&
touch /mnt/nvidia0 /mnt/nvidia1 &&
mount --bind /dev/null /mnt/nvidia0 && mount --bind /dev/null /mnt/nvidia1 &&
mount --rbind /mnt /dev && exec "$@"
"""


@pytest.mark.parametrize("moves", [False, True])
def test_a_command_opens_the_nodes_of_other_cards_only_if_it_may_be_moved(
    own: Stack, *, moves: bool
) -> None:
    own.configure(timing=OFTEN, evict={"moves": moves})
    before = ["unshare", "--mount", "sh", "-c", _TWO_NODES, "sh", *own.cli, "run"]
    options = ["--memory", "1GiB", "--devices", "0", "--name", "near", "--"]
    script = f"cat /dev/nvidia0 && cat /dev/nvidia1; echo $?; exec {own.installation.probe}"
    with subprocess.Popen(
        [*before, *options, "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=own.environment,
        text=True,
    ) as command:
        asked, said = command.stdin, command.stdout
        assert asked is not None
        assert said is not None
        assert said.readline() == f"{int(not moves)}\n"
        asked.write(f"alloc {MIB}\n")
        asked.flush()
        wait_until(lambda: '"alloc"' in said.readline())
        if moves:
            assert own.client.move("near", "1")["cards"][0]["index"] == 1
        else:
            with pytest.raises(RequestRefused, match=r"cannot open the device node of card 1"):
                own.client.move("near", "1")


def ask_for(stack: Stack, step: str, name: str) -> None:
    """Ask for a step of a daemon that is killed meanwhile."""
    with suppress(DaemonUnreachable):
        getattr(stack.client, step)(name)


@pytest.mark.gate
@pytest.mark.parametrize("step", ["evict", "restore"])
def test_a_killed_daemon_continues_where_it_was(own: Stack, step: str) -> None:
    with holding(own, "100GiB", mib=256, devices="0") as (bundle, tenant):
        if step == "restore":
            own.client.evict(bundle.id, hold=True)
        call = threading.Thread(target=ask_for, args=(own, step, bundle.id))
        call.start()
        if step == "evict":
            wait_until(lambda: state(bundle) != "")
        else:
            wait_until(lambda: state(bundle) != "evicted")
        own.end_daemon()
        call.join()
        own.start_daemon()
        wait_until(lambda: state(bundle) in {"evicted", ""})
        is_evicted = state(bundle) == "evicted"
        assert (available(own) > 100 * GIB) == is_evicted
        if is_evicted:
            own.client.restore(bundle.id)
        assert is_intact(tenant)


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


@pytest.fixture
def planted() -> Iterator[Path]:
    """A file that anybody may have placed in the host's /dev/shm."""
    file = Path("/dev/shm") / f"gpushare-test-{os.getpid()}"
    file.touch()
    yield file
    file.unlink()


def test_what_calls_the_driver_as_root_has_an_empty_shared_memory(
    own: Stack, planted: Path
) -> None:
    """The eviction's worker, and before each other program a helper."""
    with holding(own, "4GiB") as (bundle, _):
        own.client.evict(bundle.id)
        [worker] = [
            folder
            for folder in Path("/proc").iterdir()
            if folder.name.isdecimal() and is_worker(folder, own.client.status()["pid"])
        ]
        assert list((worker / "root/dev/shm").iterdir()) == []
    listed = [*WITH_OWN_SHARED_MEMORY, "/bin/ls", str(planted.parent)]
    assert subprocess.run(listed, check=True, capture_output=True).stdout == b""


def is_worker(folder: Path, parent: int) -> bool:
    """Whether a folder of /proc is the eviction worker of that gpushared."""
    with suppress(OSError):
        status = (folder / "status").read_text()
        words = (folder / "cmdline").read_bytes()
        return f"\nPPid:\t{parent}\n" in status and b"eviction" in words
    return False
