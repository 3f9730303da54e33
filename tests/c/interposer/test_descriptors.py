# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403, F405 - a program in the words of client.py
"""The descriptors that the library keeps in a program: status file, socket and FIFO."""

from __future__ import annotations

import fcntl
import resource
import subprocess
from collections.abc import Iterator

import pytest

from gpushare import abi

from .client import *
from .container import ProgramContainer
from .gate import WrittenGate
from .inside import inside
from .rank import Rank

KEPT = ["socket", abi.STATUS_NAME, abi.WAKEUP_NAME]


def own() -> dict[str, int]:
    """The descriptors of the library's own, by what they are."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        name = os.readlink(link) if link.is_symlink() else ""
        if name.startswith((os.environ["GPUSHARE_TENANT_DIR"], "socket:")):
            found[name.partition(":")[0].split("/")[-1]] = int(link.name)
    return dict(sorted(found.items()))


def use(spin: c_void_p) -> None:
    pointer = alloc(MIB)
    result_of(alloc, 100 * MIB)  # under the lock of the status file; the first refusal is sent
    free(pointer)
    launch(spin, 1000)
    synchronize()


@pytest.fixture
def listening(simulated: ProgramContainer) -> Iterator[ProgramContainer]:
    """A container with all that the library opens, and a gate at which each launch is reported."""
    WrittenGate(simulated.tenant).set(abi.GATE_METERED)
    os.mkfifo(simulated.tenant.directory / abi.WAKEUP_NAME)
    with simulated.tenant.listen():
        yield simulated


@inside("listening")
def test_they_are_high_close_on_exec_and_let_no_file_table_grow() -> None:
    """That would take milliseconds in a program with threads."""

    def table() -> list[str]:
        lines = Path("/proc/self/status").read_text().splitlines()
        return [line for line in lines if line.startswith("FDSize")]

    threading.Thread(target=threading.Event().wait, daemon=True).start()
    before = table()
    start()
    use(kernel())
    assert list(own()) == KEPT
    for number in own().values():
        assert fcntl.fcntl(number, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        assert 40 <= number < 64
    assert table() == before


def take_away(*, replaced: bool) -> Callable[[], None]:
    """Close the descriptors, or put files of the program in their place: and return a check."""
    numbers, zero = own().values(), os.open("/dev/zero", os.O_RDONLY)
    for number in numbers:
        os.dup2(zero, number) if replaced else os.close(number)
    assert own() == {}

    def check() -> None:
        assert all(40 <= number < 64 for number in own().values())
        for number in numbers if replaced else ():  # which are the program's now
            assert os.path.samestat(os.fstat(number), os.fstat(zero))

    return check


@pytest.mark.parametrize("replaced", [False, True])
@inside("listening")
def test_a_program_may_close_them_and_use_their_numbers(replaced: bool) -> None:
    start()
    spin = kernel()
    launch(spin, 1000)
    check = take_away(replaced=replaced)
    while not {abi.STATUS_NAME, abi.WAKEUP_NAME} <= own().keys():
        use(spin)
    check()


@inside("listening")
def test_a_forked_child_opens_its_own_and_an_executed_program_has_none() -> None:
    """Only the FIFO is shared: locks and the connection belong to the parent."""
    start()
    use(kernel())
    before = own()

    def child() -> None:
        assert list(own()) == [abi.WAKEUP_NAME]

    assert in_child(child) == 0
    listing = ["/bin/ls", "-l", "/proc/self/fd"]
    shown = subprocess.run(listing, close_fds=False, capture_output=True, text=True, check=True)
    assert not [name for name in before if name in shown.stdout]
    assert own() == before


@pytest.mark.parametrize("limit", [20, 40, 41])
@inside("listening")
def test_a_few_descriptors_are_enough(limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    start()
    use(kernel())
    assert list(own()) == KEPT
    assert result_of(alloc, 101 * MIB) == OUT_OF_MEMORY
    alloc(MIB)


def test_a_process_that_closed_them_keeps_its_charge(simulated: ProgramContainer) -> None:
    """Its lock on the status file is gone, but its PID is there."""
    one, other = (Rank(simulated, words=globals()) for _ in range(2))
    one.ask("alloc(60 * MIB)")
    one.ask("[os.close(number) for number in own().values()]")
    assert other.ask("result_of(alloc, 41 * MIB)") == OUT_OF_MEMORY
    assert one.ask("result_of(alloc, 41 * MIB)") == OUT_OF_MEMORY
    assert abi.STATUS_NAME in one.ask("own()")
    for rank in (one, other):
        rank.end()
