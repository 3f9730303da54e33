# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403, F405 - a program in the words of client.py
"""The interposer in a program's process: its start, forks and messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushare import abi
from gpushare.simulator import device_file

from .client import *
from .conftest import filters_over
from .container import ProgramContainer
from .inside import inside
from .rank import Rank
from .tenant import InterposedTenant, Message, receive

INIT = "import ctypes; cu = ctypes.CDLL('libcuda.so.1'); print(cu.cuInit(0), cu.cuInit(0))"
SYSTEM_NOT_READY = "802"


def init(container: ProgramContainer) -> tuple[str, str]:
    done = container.run(sys.executable, "-c", INIT)
    assert done.returncode == 0
    return done.stdout.strip(), done.stderr


def write(page: Path, offset: int, change: int) -> None:
    text = bytearray(page.read_bytes())
    text[offset] += change
    page.write_bytes(text)


#: What is wrong with the pages, and why the program has no GPU.
def none(tenant: InterposedTenant) -> str:
    tenant.grant.unlink()
    return "/grant: No such file or directory"


def of_another_version(tenant: InterposedTenant) -> str:
    write(tenant.grant, abi.GRANT_HEADER_ABI_VERSION, 1)
    return "/grant: was written by a different version of gpushare"


def of_something_else(tenant: InterposedTenant) -> str:
    write(tenant.status, 0, 1)
    return "/status: was not written by gpushared"


def unbound(tenant: InterposedTenant) -> str:
    write(tenant.grant, abi.GRANT_HEADER_UNBOUND, 1)
    return "/grant: the container was started before gpushared knew of its process"


def too_short(tenant: InterposedTenant) -> str:
    os.truncate(tenant.status, abi.STATUS_BYTES - 1)
    return "/status: is too short"


@pytest.mark.parametrize("pages", [none, of_another_version, of_something_else, unbound, too_short])
def test_without_pages_there_is_no_gpu(
    pages: Callable[[InterposedTenant], str], simulated: ProgramContainer
) -> None:
    why = pages(simulated.tenant)
    said, stderr = init(simulated)
    assert said == f"{SYSTEM_NOT_READY} {SYSTEM_NOT_READY}"
    assert stderr == (
        f"gpushare: no GPU: the quota of this container is unknown: {simulated.tenant.directory}"
        f"{why}. Restart the container, and run `gpushare doctor` on the host.\n"
    )


@inside("fake")
def test_an_error_of_the_driver_s_own_start_is_passed_on_until_it_is_ready() -> None:
    """802 as where the fabric manager is not running, 100 as without a card: nothing is said."""
    for error in (int(SYSTEM_NOT_READY), 100):
        os.environ["FAKE_CUDA_INIT"] = str(error)
        assert result_of(call, "cuInit", 0) == error
    del os.environ["FAKE_CUDA_INIT"]
    start()
    alloc(MIB)


def test_the_library_of_containers_reads_no_variable(simulated: ProgramContainer) -> None:
    with filters_over(device_file.libraries(), abi.CONTAINER_DIR) as libraries:
        said, stderr = init(replace(simulated, libraries=libraries))
    assert said == f"{SYSTEM_NOT_READY} {SYSTEM_NOT_READY}"
    assert f"{abi.TENANT_DIR}/grant: No such file or directory" in stderr


def test_on_the_host_the_environment_cannot_replace_pages_that_are_mounted(
    container: ProgramContainer,
) -> None:
    inside = f"""
        mount -t tmpfs none /opt &&
        mkdir -p /opt/gpushare/tenant &&
        exec "$0" -c "{INIT}"
    """
    done = container.run(
        "unshare", "--map-root-user", "--mount", "sh", "-c", inside, sys.executable
    )
    assert done.stdout.split() == [SYSTEM_NOT_READY, SYSTEM_NOT_READY]
    assert "/opt/gpushare/tenant/grant: No such file or directory" in done.stderr


def test_in_a_nested_pid_namespace_a_process_has_its_own_start_time(
    simulated: ProgramContainer,
) -> None:
    """Its /proc is the outer one: the number 1 is another process's there."""
    client = Path(__file__).with_name("client.py").read_text()
    look = f"""
from gpushare import abi
start(); alloc(MIB)
page = open({str(simulated.tenant.status)!r}, "rb").read()
record = abi.PROCESS.unpack_from(page, abi.status_process_offset(0))
own = open("/proc/self/stat").read().rpartition(")")[2].split()[19]
print(record[0], record[2] == int(own))
"""
    done = simulated.run(
        "unshare", "--map-root-user", "--pid", "--fork", "--kill-child",
        sys.executable, "-c", client + look,
    )  # fmt: skip
    assert done.stdout.split() == ["1", "True"], done.stderr


def test_the_daemon_is_notified_of_the_first_refusal(simulated: ProgramContainer) -> None:
    with simulated.tenant.listen() as listener:
        rank = Rank(simulated)
        rank.ask("[result_of(alloc, 102 * MIB) for _ in range(3)]")
        rank.end()
        connection, _ = listener.accept()
        with connection:
            text = f"card 0: {102 * MIB} bytes refused: 0 of {100 * MIB} bytes are in use"
            assert receive(connection) == Message(abi.MESSAGE_LOG, 6, rank.process.pid, text)
            assert receive(connection) is None


def test_an_unresponsive_daemon_delays_nothing(simulated: ProgramContainer) -> None:
    with simulated.tenant.listen() as listener:
        listener.listen(0)
        for _ in range(3):  # more than the socket takes unaccepted
            rank = Rank(simulated)
            assert rank.ask("result_of(alloc, 101 * MIB)") == OUT_OF_MEMORY
            rank.end()


@inside("fake")
def test_a_forked_child_has_a_slot_of_its_own_and_is_not_locked_out() -> None:
    """It gets the driver's answer, and may fork in turn."""
    start()
    pointer = alloc(40 * MIB)

    def child() -> None:
        assert result_of(alloc, 61 * MIB) == OUT_OF_MEMORY
        alloc(60 * MIB)
        free(pointer)  # of its parent: whatever the driver says, nothing is given back
        assert memory()[0] == 0

    def use() -> None:
        made("cuDevicePrimaryCtxRetain", 0)
        release(create(MIB))
        free(alloc(MIB))

    def nested() -> None:
        assert in_child(use) == 0

    assert [in_child(work) for work in (child, use, nested)] == [0, 0, 0]
    alloc(60 * MIB)


@inside("container")
def test_errno_threads_and_signals_are_left_alone() -> None:
    def state() -> tuple[int, list[tuple[str, int]]]:
        kept = ("SigCgt", "SigBlk", "SigIgn")
        status = Path("/proc/self/status").read_text().splitlines()
        lines = [line.split() for line in status if line.startswith(kept)]
        # 32 and 33 are those of glibc's own for threads, which the simulated driver has.
        return len(threads()), [(name, int(mask, 16) & ~(3 << 31)) for name, mask in lines]

    before = state()
    driver = ctypes.CDLL(os.environ["LIBCUDA"], use_errno=True)
    start()
    ctypes.set_errno(0)
    driver.cuMemAlloc_v2(byref(c_uint64()), c_size_t(101 * MIB))
    assert (ctypes.get_errno(), state()) == (0, before)
