# SPDX-License-Identifier: Apache-2.0
"""The descriptors that the library keeps in a program: status file, socket and FIFO."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from gpushare import abi

from .container import ProgramContainer
from .gate import WrittenGate
from .test_gate import START

KEPT = ["socket", abi.STATUS_NAME, abi.WAKEUP_NAME]
OWN = (
    "def own():",
    "    found = {}",
    "    for fd in os.listdir('/proc/self/fd'):",
    "        link = Path('/proc/self/fd', fd)",
    "        name = os.readlink(link) if link.is_symlink() else ''",
    "        if name.startswith((os.environ['GPUSHARE_TENANT_DIR'], 'socket:')):",
    "            found[name.partition(':')[0].split('/')[-1]] = int(fd)",
    "    return found",
    "def use():",
    "    alloc(MIB)",
    "    result_of(alloc, 100 * MIB)",  # the first refusal is sent through the socket
    "    launch(spin, 1000)",
    "    synchronize()",
)


@pytest.fixture
def listening(simulated: ProgramContainer) -> Iterator[ProgramContainer]:
    """A container with all that the library opens, and a gate at which each launch is reported."""
    WrittenGate(simulated.tenant).set(abi.GATE_METERED)
    os.mkfifo(simulated.tenant.directory / abi.WAKEUP_NAME)
    with simulated.tenant.listen():
        yield simulated


def test_they_are_high_close_on_exec_and_let_no_file_table_grow(
    listening: ProgramContainer,
) -> None:
    """That would take milliseconds in a program with threads."""
    said = listening.says(
        *OWN,
        "import fcntl",
        "def table():",
        "    lines = Path('/proc/self/status').read_text().splitlines()",
        "    return [line for line in lines if line.startswith('FDSize')]",
        "threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "before = table()",
        *START,
        "use()",
        "numbers = own().values()",
        "flags = [fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in numbers]",
        "high = [40 <= fd < 64 for fd in numbers]",
        "say(sorted(own()), all(flags), all(high), table() == before)",
    )
    assert said == [KEPT, True, True, True]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_program_may_close_them_and_use_their_numbers(
    listening: ProgramContainer, replaced: bool
) -> None:
    said = listening.says(
        *OWN,
        "import time",
        *START,
        "launch(spin, 1000)",
        "numbers = own().values()",
        "zero = os.open('/dev/zero', os.O_RDONLY)",
        f"for fd in numbers: os.dup2(zero, fd) if {replaced} else os.close(fd)",
        "lost = own()",
        "time.sleep(1)",  # it connects once a second at the most
        "use()",
        "left = [os.path.samestat(os.fstat(fd), os.fstat(zero)) for fd in numbers]",
        "high = [40 <= fd < 64 for fd in own().values()]",
        "say(list(lost), sorted(own()), all(high), left)",
    )
    assert said == [[], KEPT, True, [replaced] * 3]


def test_a_forked_child_opens_its_own_and_an_executed_program_has_none(
    listening: ProgramContainer,
) -> None:
    """Only the FIFO is shared: locks and the connection belong to the parent."""
    said = listening.says(
        *OWN,
        "import subprocess",
        *START,
        "use()",
        "before = own()",
        "read, write = os.pipe()",
        "if (child := os.fork()) == 0:",
        "    os.write(write, json.dumps(sorted(own())).encode())",
        "    os._exit(0)",
        "os.waitpid(child, 0)",
        "left = json.loads(os.read(read, 999))",
        "listing = ['/bin/ls', '-l', '/proc/self/fd']",
        "shown = subprocess.run(listing, close_fds=False, capture_output=True, text=True).stdout",
        "executed = [name for name in before if name in shown]",
        "say(left, executed, own() == before)",
    )
    assert said == [[abi.WAKEUP_NAME], [], True]


@pytest.mark.parametrize("limit", [20, 40, 41])
def test_a_few_descriptors_are_enough(listening: ProgramContainer, limit: int) -> None:
    said = listening.says(
        *OWN,
        "import resource",
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))",
        *START,
        "use()",
        "say(sorted(own()), result_of(alloc, 101 * MIB), result_of(alloc, MIB))",
    )
    assert said == [KEPT, 2, 0]
