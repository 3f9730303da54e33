# SPDX-License-Identifier: Apache-2.0
"""The interposer in a program's process: its start, forks, messages, and limits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpushare import abi

from .conftest import ROOT
from .container import ProgramContainer, program
from .tenant import MIB, Message, receive

INIT = "import ctypes; cu = ctypes.CDLL('libcuda.so.1'); print(cu.cuInit(0), cu.cuInit(0))"
SYSTEM_NOT_READY = "802"


def init(container: ProgramContainer) -> tuple[str, str]:
    done = container.run(sys.executable, "-c", INIT)
    assert done.returncode == 0
    return done.stdout.strip(), done.stderr


def refusal(container: ProgramContainer) -> str:
    """The reason that a program is given, which sees the driver's own error twice."""
    said, stderr = init(container)
    assert said == f"{SYSTEM_NOT_READY} {SYSTEM_NOT_READY}"
    match = re.fullmatch(
        "gpushare: no GPU: the quota of this container is unknown: (.*). Restart the container, "
        "and run `gpushare doctor` on the host.\n",
        stderr,
    )
    assert match, stderr
    return match[1]


def test_no_pages_no_gpu(container: ProgramContainer) -> None:
    container.env["GPUSHARE_TENANT_DIR"] = "/nonexistent"
    assert refusal(container) == "/nonexistent/grant: No such file or directory"


def test_no_tenant_directory_at_all(container: ProgramContainer) -> None:
    container.env["GPUSHARE_TENANT_DIR"] = ""
    assert refusal(container) == "/opt/gpushare/tenant/grant: No such file or directory"


def test_another_version_of_the_pages(container: ProgramContainer) -> None:
    page = bytearray(container.tenant.grant.read_bytes())
    page[abi.GRANT_HEADER_ABI_VERSION] += 1
    container.tenant.grant.write_bytes(page)
    assert refusal(container).endswith("/grant: was written by a different version of gpushare")


def test_pages_of_something_else(container: ProgramContainer) -> None:
    page = bytearray(container.tenant.status.read_bytes())
    page[0] += 1
    container.tenant.status.write_bytes(page)
    assert refusal(container).endswith("/status: was not written by gpushared")


def test_a_program_that_starts_before_its_container_is_bound_gets_no_gpu(
    container: ProgramContainer,
) -> None:
    with container.tenant.grant.open("r+b") as page:
        page.seek(abi.GRANT_HEADER_UNBOUND)
        page.write(b"\1")
    said = "/grant: the container was started before gpushared knew of its process"
    assert refusal(container).endswith(said)


def test_a_truncated_page_is_refused_not_crashed_on(container: ProgramContainer) -> None:
    os.truncate(container.tenant.status, abi.STATUS_BYTES - 1)
    assert refusal(container).endswith("/status: is too short")


def test_the_environment_cannot_replace_the_container_s_own_pages(
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


def test_it_says_nothing_of_its_own(container: ProgramContainer) -> None:
    assert init(container) == ("0 0", "")


def test_the_daemon_is_notified_of_the_process_and_of_its_first_refusal(
    container: ProgramContainer,
) -> None:
    with container.tenant.listen() as listener:
        process = container.start(
            sys.executable, "-c",
            program("start()", "[result_of(alloc, 102 * MIB) for _ in range(3)]", "input()"),
        )  # fmt: skip
        connection, _ = listener.accept()
        with process, connection:
            assert receive(connection) == Message(abi.MESSAGE_HELLO, 0, process.pid, "")
            refused = receive(connection)
            process.communicate("\n")
            assert receive(connection) is None
    text = f"card 0: {102 * MIB} bytes refused: 0 of {100 * MIB} bytes are in use"
    assert refused == Message(abi.MESSAGE_LOG, 6, process.pid, text)


def test_a_restarted_daemon_gets_the_next_message(container: ProgramContainer) -> None:
    process = None
    with container.tenant.listen() as listener:
        process = container.start(
            sys.executable,
            "-c",
            program("start()", "say()", "input()", "result_of(alloc, 102 * MIB)"),
        )
        connection, _ = listener.accept()
        connection.close()
        assert process.stdout
        process.stdout.readline()
    (container.tenant.directory / abi.SOCKET_NAME).unlink()
    with process, container.tenant.listen() as listener:
        time.sleep(1)  # it tries once a second at the most
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
        connection, _ = listener.accept()
        with connection:
            heard = receive(connection)
        process.communicate()
    assert heard
    assert "bytes refused" in heard.text


def test_an_unresponsive_daemon_delays_nothing(container: ProgramContainer) -> None:
    with container.tenant.listen() as listener:
        listener.listen(0)
        for _ in range(3):  # more than the socket takes unaccepted
            assert container.says("start()", "say(result_of(alloc, 101 * MIB))") == [2]


def test_messages_go_to_stderr_on_request(container: ProgramContainer) -> None:
    container.env["GPUSHARE_LOG"] = "info"
    done = container.run(sys.executable, "-c", program("start()", "result_of(alloc, 102 * MIB)"))
    assert done.stderr == (
        f"gpushare: card 0: {102 * MIB} bytes refused: 0 of {100 * MIB} bytes are in use\n"
    )


def test_a_forked_child_has_a_slot_of_its_own(fake: ProgramContainer) -> None:
    said = fake.python(
        "start()",
        "pointer = alloc(40 * MIB)",
        "child = os.fork()",
        "if child == 0:",
        "    result = result_of(alloc, 61 * MIB), result_of(alloc, 60 * MIB)",
        "    free(pointer)",  # of its parent: whatever the driver says, nothing is given back
        "    say('child', *result, memory()[0])",
        "    os._exit(0)",
        "os.waitpid(child, 0)",
        "say('parent', result_of(alloc, 60 * MIB), memory()[0])",
    )
    assert said == [["child", 2, 0, 0], ["parent", 0, 0]]


def test_a_forked_child_is_not_locked_out(fake: ProgramContainer) -> None:
    """It gets the driver's answer, and may fork in turn; a deadlock ends with SIGALRM."""
    said = fake.says(
        "import signal",
        "start()",
        "def in_child(work):",
        "    child = os.fork()",
        "    if child:",
        "        return os.waitpid(child, 0)[1]",
        "    signal.alarm(20)",
        "    work()",
        "    os._exit(0)",
        "def use():",
        "    call('cuDevicePrimaryCtxRetain', byref(c_void_p()), 0)",
        "    release(create(MIB))",
        "    free(alloc(MIB))",
        "say(in_child(lambda: in_child(use)), in_child(use))",
    )
    assert said == [0, 0]


def test_a_child_forked_before_init_is_a_process_like_any(container: ProgramContainer) -> None:
    said = container.python(
        "child = os.fork()",
        "start()",
        "alloc(50 * MIB)",
        "if child:",
        "    os.waitpid(child, 0)",
        "    over = result_of(alloc, 51 * MIB)",
        "    say(over, result_of(alloc, 50 * MIB))",
        "else:",
        "    os._exit(0)",
    )
    assert said == [[2, 0]]


def test_errno_threads_and_signals_are_left_alone(container: ProgramContainer) -> None:
    said = container.says(
        "import signal",
        "def state():",
        "    status = open('/proc/self/status').read()",
        "    kept = ('SigCgt', 'SigBlk', 'SigIgn')",
        "    lines = [line.split() for line in status.splitlines() if line.startswith(kept)]",
        # 32 and 33 are those of glibc's own for threads, which the simulated driver has.
        "    masks = [(name, int(mask, 16) & ~(3 << 31)) for name, mask in lines]",
        "    return len(threads()), masks",
        "before = state()",
        "ctypes.set_errno(0)",
        "driver = ctypes.CDLL('libcuda.so.1', use_errno=True)",
        "start()",
        "driver.cuMemAlloc_v2(byref(c_uint64()), c_size_t(101 * MIB))",
        "say(ctypes.get_errno(), before == state())",
    )
    assert said == [0, True]


@pytest.mark.parametrize(
    ("library", "table"), [("libcuda.so.1", "cuda"), ("libnvidia-ml.so.1", "nvml")]
)
def test_every_symbol_of_the_table_is_exported_and_no_other(
    library: str, table: str, fake: ProgramContainer
) -> None:
    text = (ROOT / "libhook" / "table" / f"{table}.inc").read_text()
    symbols = set(re.findall(rf"^{table.upper()}_SYMBOL\((\w+)", text, re.MULTILINE))
    path: Path = fake.libraries / library
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", path], capture_output=True, text=True, check=True
    )
    assert {line.split()[2] for line in listed.stdout.splitlines()} == symbols


def test_the_table_is_sorted_by_name_for_the_lookup() -> None:
    text = (ROOT / "libhook" / "table" / "cuda.inc").read_text()
    names = re.findall(r"^CUDA_SYMBOL\(\w+, (\w+),", text, re.MULTILINE)
    assert names == sorted(names)
