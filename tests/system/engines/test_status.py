# SPDX-License-Identifier: Apache-2.0
"""What a running engine says, and what is made of it; its programs answer as the real ones do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpushare import engines
from gpushare.engines import query
from gpushare.engines.config_files import ConfigLocation
from gpushare.engines.query import RuntimeReport
from tests.system.waiting import wait_until

pytestmark = pytest.mark.gate

LAUNCHER = Path("/opt/x/gpushare-runtime")
CRIO = f"""\
[crio.runtime]
default_runtime = "gpushare"
[crio.runtime.runtimes.gpushare]
runtime_path = "{LAUNCHER}"
"""
CRI = {
    "config": {
        "containerd": {
            "defaultRuntimeName": "runc",
            "runtimes": {"gpushare": {"options": {"BinaryName": str(LAUNCHER)}}},
        }
    }
}


class FakePrograms:
    """A folder of programs before all others on PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def say(self, name: str, said: str, *, code: int = 0, error: str = "") -> None:
        """Let `name` print `said`."""
        path = self.folder / name
        (self.folder / f"{name}.said").write_text(said)
        path.write_text(f"#!/bin/sh\ncat {path}.said\necho '{error}' >&2\nexit {code}\n")
        path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePrograms:
    folder = tmp_path / "bin"
    folder.mkdir()
    return FakePrograms(folder, monkeypatch)


def place(tmp_path: Path, **more: Any) -> ConfigLocation:
    file = tmp_path / "config"
    file.touch()
    return ConfigLocation(
        (engines.find("crio").locate(Path("/"), file).files[0],), "restart", **more
    )


def docker_info(runtimes: dict[str, Any], default: str = "runc", **more: object) -> str:
    return json.dumps({"Runtimes": runtimes, "DefaultRuntime": default, **more})


OURS = RuntimeReport(True, True, LAUNCHER)
PODMAN = {"host": {"ociRuntime": {"name": "gpushare", "path": str(LAUNCHER)}}}


@pytest.mark.parametrize(
    ("ask", "program", "said", "found"),
    [
        ("docker", "docker", docker_info({"runc": {"path": "runc"}}), RuntimeReport(False, False)),
        ("docker", "docker", docker_info({"gpushare": {"path": str(LAUNCHER)}}, "gpushare"), OURS),
        ("containerd", "crictl", json.dumps(CRI), RuntimeReport(True, False, LAUNCHER)),
        ("crio", "crio", CRIO, OURS),
        ("podman", "podman", json.dumps(PODMAN), OURS),
    ],
)
def test_each_engine_is_asked_for_its_runtimes(
    programs: FakePrograms, tmp_path: Path, ask: str, program: str, said: str, found: RuntimeReport
) -> None:
    programs.say(program, said)
    there = place(tmp_path, socket=Path("/run/x.sock"))
    assert getattr(query, f"query_{ask}")(there) == found


@pytest.mark.parametrize(
    ("ask", "said", "fault", "known"),
    [
        ("docker", docker_info({}, "", ServerErrors=["Cannot connect"]), {}, None),
        ("crio", "", {"code": 1, "error": "connection refused"}, None),
        ("podman", "", {"code": 125, "error": 'Error: OCI runtime "gpushare" not found'}, False),
    ],
)
def test_an_engine_that_refuses_may_say_that_it_does_not_know_it(
    programs: FakePrograms, tmp_path: Path, ask: str, said: str, fault: Any, known: bool | None
) -> None:
    programs.say(ask, said, **fault)
    assert getattr(query, f"query_{ask}")(place(tmp_path)).known is known


def test_a_containerd_older_than_its_file_has_not_read_it(
    tmp_path: Path, programs: FakePrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = place(tmp_path, main=tmp_path / "config")
    words = ("containerd", "--config", str(tmp_path / "config"))
    changed = (tmp_path / "config").stat().st_mtime
    for started, found in ((changed - 60, False), (changed + 60, True)):
        running = [query.EngineProcess(7, words, started)]
        monkeypatch.setattr(query, "find_processes", lambda _, running=running: running)
        programs.say("containerd", "version = 2\n" + _handler())
        assert query.query_containerd(there).known is found
    monkeypatch.setattr(query, "find_processes", lambda _: [])
    assert query.query_containerd(there).reason == "containerd is not running"


def _handler() -> str:
    name = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.gpushare.options]'
    return f'{name}\nBinaryName = "{LAUNCHER}"\n'


def test_a_process_is_found_with_its_arguments_and_its_age(tmp_path: Path) -> None:
    folder = tmp_path / "77"
    folder.mkdir()
    ticks = 5 * os.sysconf("SC_CLK_TCK")
    (folder / "stat").write_text(f"77 (containerd) S {' '.join(['0'] * 18)} {ticks} 0\n")
    (folder / "cmdline").write_bytes(b"containerd\0--config=/x\0")
    (found,) = query.find_processes("containerd", tmp_path, booted=1000.0)
    assert (found.pid, found.started, found.value("--config")) == (77, 1005.0, "/x")
    assert query.find_processes("dockerd", tmp_path) == []


@pytest.fixture
def containerd_program(tmp_path: Path) -> Path:
    """A program whose processes are called containerd."""
    program = tmp_path / "bin" / "containerd"
    program.parent.mkdir()
    program.write_bytes(Path(shutil.which("sleep") or "/bin/sleep").read_bytes())
    program.chmod(0o755)
    return program


def found_pids() -> set[int]:
    return {process.pid for process in query.find_processes("containerd")}


def test_a_zombie_is_no_running_engine(containerd_program: Path) -> None:
    """A dead containerd that is not reaped, older than its file, once made every status unread."""
    with subprocess.Popen([containerd_program, "1000"]) as process:
        wait_until(lambda: process.pid in found_pids())
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # and do not reap it
        assert Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        assert process.pid not in found_pids()


AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts another user's process")


@AS_ROOT
@pytest.mark.parametrize(
    "change",
    [
        pytest.param("os.setresuid(12345, 12345, 12345)", id="another user's"),
        pytest.param("os.chroot(sys.argv[1])", id="of a container"),
    ],
)
def test_only_a_process_of_this_machines_root_is_an_engine(tmp_path: Path, change: str) -> None:
    """A Kubernetes node in a container has an engine of its own, with a file of the same path."""
    code = (
        "import os, sys, time; open('/proc/self/comm', 'w').write('containerd'); "
        f"print(flush=True); sys.stdin.readline(); {change}; print(flush=True); time.sleep(1000)"
    )
    command, pipe = [sys.executable, "-c", code, str(tmp_path)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdout.readline()
            assert process.pid in found_pids()
            process.stdin.write("\n")
            process.stdin.flush()
            process.stdout.readline()
            assert process.pid not in found_pids()
        finally:
            process.kill()
