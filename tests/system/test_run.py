# SPDX-License-Identifier: Apache-2.0
"""`gpushare run`: a host process as a tenant. The scenario of two is in test_engines.py."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpushare.protocol import CODE_REFUSED
from tests.stack import Stack
from tests.unit.cli.fake_daemon import AnsweringDaemon, refusal
from tests.unit.setup.test_undo import functions

WAIT_SECONDS = 20.0  # the daemon looks at a tenant's cgroup again at growing intervals
NOBODY = 65534
OURS = Path("/opt/gpushare")
DRIVER = OURS / "driver"


def run(stack: Stack, *words: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*stack.cli, "run", *words],
        check=False,
        capture_output=True,
        text=True,
        env=stack.environment,
        timeout=60,
        **settings,
    )


def names(stack: Stack) -> list[str]:
    found = subprocess.run(
        [*stack.cli, "ps", "--json"],
        check=True,
        capture_output=True,
        text=True,
        env=stack.environment,
    )
    return [tenant["name"] for tenant in json.loads(found.stdout)]


def wait_until(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


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


def test_the_command_sees_its_quota_as_the_card(stack: Stack) -> None:
    done = run(stack, "--memory", "3GiB", "--", str(stack.installation.probe), "info")
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert said[-1]["total"] == said[-1]["device_total"] == 3 << 30


def test_a_process_that_cannot_be_bound_leaves_nothing(tmp_path: Path) -> None:
    opened = {"key": "0" * 16, "id": "host-00000000", "directory": "", "mounts": [], "env": {}}
    answers = {
        "open": [{"ok": True, **opened}],
        "bind": refusal(CODE_REFUSED, "the reservation has expired"),
        "release": [{"ok": True}],
    }
    with AnsweringDaemon(tmp_path / "control.sock", answers).running() as daemon:
        done = subprocess.run(
            [sys.executable, "-m", "gpushare.cli", "run", "--memory", "1GiB", "true"],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "GPUSHARE_SOCKET": str(daemon.path)},
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (125, "gpushare: the reservation has expired\n")
    assert [request["op"] for request in daemon.requests] == ["open", "bind", "release"]
    assert not list(Path("/sys/fs/cgroup").glob("**/gpushare/host-00000000"))


def test_gpushare_undo_names_a_command_as_ps_does(stack: Stack, tmp_path: Path) -> None:
    script = tmp_path / "script"

    def title(run_folder: Path, pid: int) -> str:
        script.write_text(functions("", f"run={run_folder}; title {pid}"))
        return subprocess.check_output(["sh", script], text=True)

    words = ("--memory", "1GiB", "--name", "trainer", "--", "sh", "-c", "echo up; exec sleep 60")
    with running(stack, *words) as process:
        assert title(stack.root / "run", process.pid) == "trainer\n"
        assert title(tmp_path, process.pid) == f"process {process.pid}\n"
    assert wait_until(lambda: "trainer" not in names(stack))


FIND_LIBRARY = "import ctypes.util; print(ctypes.util.find_library('cuda'))"
# As Triton looks for the driver's folder.
LDCONFIG = """
import subprocess
import sys
lines = subprocess.check_output(["/sbin/ldconfig", "-p"], text=True).splitlines()
print([line.split()[-1] for line in lines if "libcuda.so.1" in line][0])
"""
# The filter is mapped, and the driver behind it.
LOADED = """
import ctypes
ctypes.CDLL("libcuda.so.1")
maps = open("/proc/self/maps").read().split()
assert any(path.endswith("lib/libcuda.so.1") for path in maps)
print([path for path in maps if path.endswith("driver/libcuda.so.1")][0])
"""


@pytest.mark.parametrize("find", [FIND_LIBRARY, LDCONFIG, LOADED])
def test_the_filter_is_found_as_any_driver_is(stack: Stack, find: str) -> None:
    done = run(stack, "--memory", "1GiB", "--", "/usr/bin/python3", "-c", find)
    assert done.stdout.strip().endswith("libcuda.so.1"), done.stderr


def test_nothing_of_it_is_seen_outside(stack: Stack) -> None:
    before = sorted(Path("/opt").iterdir())
    with running(stack, "--memory", "1GiB", "--", "sh", "-c", "echo up; read _", stdin=-1) as it:
        inside = Path(f"/proc/{it.pid}/mountinfo").read_text()
        outside = Path("/proc/self/mountinfo").read_text()
        assert sorted(Path("/opt").iterdir()) == before
    for place in (" /opt/gpushare/tenant ", " /etc/ld.so.cache "):
        assert place in inside
        assert place not in outside


def test_the_tenant_reads_its_grant_and_cannot_write_it(stack: Stack) -> None:
    script = "test -r /opt/gpushare/tenant/grant && echo x > /opt/gpushare/tenant/grant"
    done = run(stack, "--memory", "1GiB", "--", "sh", "-c", script)
    assert done.returncode != 0
    assert "Read-only file system" in done.stderr


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--memory", "1GiB", "--", "sh", "-c", "exit 7"), 7, ""),
        (("--memory", "1GiB", "--", "/nowhere/at-all"), 127, "command not found"),
        (("--memory", "1GiB", "--", ""), 127, "command not found"),
        (("--memory", "1GiB", "--", "/etc/passwd"), 126, "Permission denied"),
        (("--memory", "9000GiB", "--", "true"), 125, "9000"),
        (("--memory", "4Q", "--", "true"), 125, "4Q"),
        (("--cores", "30", "--", "true"), 125, "memory"),
        (("--", "true"), 125, "--memory"),
        (("--no-such-option", "--", "true"), 125, "--no-such-option"),
    ],
)
def test_the_exit_status_is_the_command_s_or_docker_s(
    stack: Stack, words: tuple[str, ...], status: int, said: str
) -> None:
    done = run(stack, *words)
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_signal_reaches_the_command(stack: Stack) -> None:
    script = "trap 'exit 42' TERM; echo up; while :; do sleep 0.05; done"
    with running(stack, "--memory", "1GiB", "--", "sh", "-c", script) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=WAIT_SECONDS) == 42


def test_a_closed_pipe_ends_the_command_as_without_us(stack: Stack) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*stack.cli, "run", "--memory", "1GiB", "--", "yes"],
        check=False,
        stdout=write,
        stderr=subprocess.PIPE,
        env=stack.environment,
        timeout=60,
    )
    os.close(write)
    assert done.returncode == -signal.SIGPIPE


def test_killed_it_leaves_no_tenant_and_no_cgroup(stack: Stack) -> None:
    words = ("--memory", "1GiB", "--name", "killed", "--", "sh", "-c", "echo up; read _")
    with running(stack, *words, stdin=-1) as process:
        assert "killed" in names(stack)
        group = Path(f"/proc/{process.pid}/cgroup").read_text().splitlines()[0].split(":")[2]
        assert group.startswith("/gpushare/host-")
    assert wait_until(lambda: "killed" not in names(stack))
    root = Path("/sys/fs/cgroup")  # and its v1 hierarchies: others come and go in a walk
    places = [Path(f"{folder}{group}") for folder in (root, *root.iterdir()) if folder.is_dir()]
    assert wait_until(lambda: not any(place.exists() for place in places))


def test_a_process_in_the_background_keeps_the_share(stack: Stack) -> None:
    script = "sleep 600 >/dev/null 2>&1 & echo $!"
    done = run(stack, "--memory", "1GiB", "--name", "background", "--", "sh", "-c", script)
    left = int(done.stdout)
    try:
        assert "background" in names(stack)
    finally:
        os.kill(left, signal.SIGKILL)
    assert wait_until(lambda: "background" not in names(stack))


@pytest.fixture
def links(stack: Stack) -> Iterator[None]:
    """The links that `gpushare setup` makes, to the simulated driver."""
    if OURS.exists():
        pytest.skip(f"{OURS} is this machine's own: gpushare is set up here")
    mounts = json.loads(stack.cdi.read_text())["containerEdits"]["mounts"]
    DRIVER.mkdir(parents=True)
    try:
        for file in (Path(mount["hostPath"]) for mount in mounts):
            if file.suffix == ".1":
                (DRIVER / file.name).symlink_to(file)
        yield
    finally:
        shutil.rmtree(OURS)


@pytest.mark.usefixtures("links")
def test_files_of_others_beside_our_links_stay(stack: Stack) -> None:
    (OURS / "venv").mkdir()
    (OURS / "venv/program").write_text("#!/bin/sh\necho here\n")
    (OURS / "venv/program").chmod(0o755)
    (OURS / "current").symlink_to("venv")
    done = run(stack, "--memory", "1GiB", "--", str(OURS / "current/program"))
    assert done.stdout == "here\n", done.stderr


@pytest.mark.usefixtures("links")
def test_without_root_the_quota_is_advisory_and_reported_as_such(stack: Stack) -> None:
    probe, cli = stack.installation.probe, " ".join(stack.cli)
    script = f"{probe} info && {cli} ps --json >&2"
    done = run_as_nobody(stack, "--memory", "2GiB", "--name", "mine", "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    warning, _, listed = done.stderr.partition("\n")
    assert warning.startswith("gpushare: not root: the quota is only advisory")
    assert json.loads(done.stdout.splitlines()[-1])["total"] == 2 << 30
    (tenant,) = (tenant for tenant in json.loads(listed) if tenant["name"] == "mine")
    assert tenant["isolation"] == "advisory"
    assert wait_until(lambda: "mine" not in names(stack))


@pytest.mark.usefixtures("links")
def test_with_json_standard_error_has_only_json(stack: Stack) -> None:
    words = ("--memory", "2GiB", "--name", "advised", "--")
    done = run_as_nobody(stack, "--json", *words, "echo", '{"loss": 1}')
    assert (done.stdout, done.stderr) == ('{"loss": 1}\n', "")
    failed = run_as_nobody(stack, "--json", *words, "/nonexistent")
    assert json.loads(failed.stderr)["error"]["value"] == "/nonexistent"
    assert wait_until(lambda: "advised" not in names(stack))


@pytest.mark.skipif(OURS.exists(), reason=f"{OURS} is there: gpushare is set up on this machine")
def test_without_root_and_links_the_message_says_what_to_run(stack: Stack) -> None:
    done = run_as_nobody(stack, "--memory", "2GiB", "--name", "linkless", "--", "true")
    assert done.returncode == 125
    assert "Run `sudo gpushare setup` once" in done.stderr
    assert wait_until(lambda: "linkless" not in names(stack))


def run_as_nobody(stack: Stack, *words: str) -> subprocess.CompletedProcess[str]:
    """Run as a user without rights that can still read this checkout wherever it lies."""
    user = [
        *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
        *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
    ]
    return subprocess.run(
        [*user, *stack.cli, "run", *words],
        check=False,
        capture_output=True,
        text=True,
        env=stack.environment,
        timeout=60,
    )
