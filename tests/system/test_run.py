# SPDX-License-Identifier: Apache-2.0
"""`gpushare run`: a host process as a tenant. The scenario of two is in test_verify.py."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.leftovers import cgroups_named
from tests.stack import Stack
from tests.stack.users import as_user
from tests.system.waiting import wait_until

WAIT_SECONDS = 20.0  # the daemon looks at a tenant's cgroup again at growing intervals


def run(stack: Stack, *words: str, before: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run a command; `before` is what executes the rest of its arguments."""
    return subprocess.run(
        [*before, *stack.cli, "run", *words],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=stack.environment,
        timeout=60,
    )


def names(stack: Stack) -> list[str]:
    return [tenant["name"] for tenant in stack.shown("ps")]


@contextmanager
def running(stack: Stack, *words: str, **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """A tenant that says "up" once it runs, and ends with the block."""
    with subprocess.Popen(
        [*stack.cli, "run", *words],
        stdout=subprocess.PIPE,
        text=True,
        env=stack.environment,
        **settings,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--memory", "1GiB", "--", "sh", "-c", "exit 7"), 7, ""),
        (("--memory", "1GiB", "--", "/nowhere/at-all"), 127, "command not found"),
        (("--memory", "1GiB", "--", "/etc/passwd"), 126, "Permission denied"),
        (("--memory", "9000GiB", "--", "true"), 125, "9000"),
    ],
)
def test_the_exit_status_is_the_command_s_or_docker_s(
    stack: Stack, words: tuple[str, ...], status: int, said: str
) -> None:
    done = run(stack, *words)
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.gate
def test_killed_it_leaves_no_tenant_and_no_cgroup(stack: Stack) -> None:
    words = ("--memory", "1GiB", "--name", "killed", "--", "sh", "-c", "echo up; read _")
    with running(stack, *words, stdin=-1) as process:
        assert "killed" in names(stack)
        group = Path(f"/proc/{process.pid}/cgroup").read_text().splitlines()[0].split(":")[2]
        assert group.startswith("/gpushare/host-")
    wait_until(lambda: "killed" not in names(stack))
    wait_until(lambda: not cgroups_named(group.lstrip("/")))


#: As a server does that forks a child for each connection; it starts none of the driver itself.
FORKING = """
import ctypes, os
cuda = ctypes.CDLL("libcuda.so.1")
reads, writes = os.pipe()
for _ in range(2):
    if os.fork() == 0:
        os.close(writes)
        context, memory = ctypes.c_void_p(), ctypes.c_uint64()
        cuda.cuInit(0)
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        cuda.cuCtxSetCurrent(context)
        cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(64 << 20))
        os.read(reads, 1)
        os._exit(0)
print("up", flush=True)
os.wait()
"""


@pytest.mark.gate
def test_the_children_of_a_server_are_listed_as_processes_of_one_tenant(stack: Stack) -> None:
    words = ("--memory", "4GiB", "--name", "server", "--", sys.executable, "-c", FORKING)
    with running(stack, *words) as process:

        def listed() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = stack.shown("inspect", "server")["processes"]
            return [one for one in found if (one["bytes"] or 0) > 64 << 20]

        wait_until(lambda: len(listed()) == 2)
        pids = {one["pid"] for one in listed()}
        assert process.pid not in pids
        assert names(stack) == ["server"]
        shown = json.loads(stack.gpushare("top", "--json", "--once").stdout)
        assert {one["pid"] for one in shown["processes"]} == pids
    wait_until(lambda: names(stack) == [])


@pytest.fixture
def links(stack: Stack) -> Iterator[list[str]]:
    """What runs a command where /opt has only the links that `gpushare setup` makes."""
    opt = stack.root / "opt"
    mounts = json.loads(stack.cdi.read_text())["containerEdits"]["mounts"]
    driver = opt / "gpushare/driver"
    driver.mkdir(parents=True)
    for file in (Path(mount["hostPath"]) for mount in mounts):
        if file.suffix == ".1":
            (driver / file.name).symlink_to(file)
    yield ["unshare", "--mount", "sh", "-c", f'mount --bind {opt} /opt && exec "$@"', "sh"]
    shutil.rmtree(opt)


@pytest.mark.gate
def test_without_root_the_quota_is_advisory_and_reported_as_such(
    stack: Stack, links: list[str]
) -> None:
    probe, cli = stack.installation.probe, " ".join(stack.cli)
    script = f"{probe} info && {cli} ps --json >&2"
    words = ("--memory", "2GiB", "--name", "mine", "--", "sh", "-c", script)
    done = run(stack, *words, before=[*links, *as_user()])
    assert done.returncode == 0, done.stderr
    warning, _, listed = done.stderr.partition("\n")
    assert warning.startswith("gpushare: not root: the quota is only advisory")
    assert json.loads(done.stdout.splitlines()[-1])["total"] == 2 << 30
    (tenant,) = (tenant for tenant in json.loads(listed) if tenant["name"] == "mine")
    assert tenant["isolation"] == "advisory"
