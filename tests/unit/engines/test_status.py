# SPDX-License-Identifier: Apache-2.0
"""What a running engine says, and what is made of it; its programs answer as the real ones do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpushare import install
from gpushare.cli.group import gpushare
from gpushare.engines import answer, engine, processes, registration
from gpushare.engines.answer import Answer
from gpushare.engines.place import Place
from gpushare.engines.status import look

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


class Programs:
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
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    folder = tmp_path / "bin"
    folder.mkdir()
    return Programs(folder, monkeypatch)


def place(tmp_path: Path, **more: Any) -> Place:
    file = tmp_path / "config"
    file.touch()
    return Place((engine.find("crio").place(Path("/"), file).files[0],), "restart", **more)


def docker_info(runtimes: dict[str, Any], default: str = "runc", **more: object) -> str:
    return json.dumps({"Runtimes": runtimes, "DefaultRuntime": default, **more})


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (docker_info({"runc": {"path": "runc"}}), Answer(False, False)),
        (
            docker_info({"gpushare": {"path": str(LAUNCHER)}}, "gpushare"),
            Answer(True, True, LAUNCHER),
        ),
        (
            docker_info({}, "", ServerErrors=["Cannot connect to the Docker daemon"]),
            Answer(None, why="docker does not answer: Cannot connect to the Docker daemon"),
        ),
    ],
)
def test_docker_is_asked_by_docker_info(
    programs: Programs, tmp_path: Path, said: str, found: Answer
) -> None:
    programs.say("docker", said)
    assert answer.of_docker(place(tmp_path)) == found


def test_who_may_not_ask_docker_is_told_to_use_sudo(programs: Programs, tmp_path: Path) -> None:
    programs.say("docker", "", code=1, error="dial unix: connect: permission denied")
    found = answer.of_docker(place(tmp_path))
    assert found.known is None
    assert found.why.endswith("connect: permission denied; use sudo")


def test_containerd_is_asked_by_crictl(programs: Programs, tmp_path: Path) -> None:
    there = place(tmp_path, socket=Path("/run/x.sock"))
    programs.say("crictl", json.dumps(CRI))
    assert answer.of_containerd(there) == Answer(True, False, LAUNCHER)
    programs.say("crictl", json.dumps({"config": {"containerd": {"runtimes": {"runc": {}}}}}))
    assert answer.of_containerd(there).known is False


def test_a_containerd_older_than_its_file_has_not_read_it(
    tmp_path: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = place(tmp_path, main=tmp_path / "config")
    words = ("containerd", "--config", str(tmp_path / "config"))
    changed = (tmp_path / "config").stat().st_mtime
    for started, found in ((changed - 60, False), (changed + 60, True)):
        running = [processes.Process(7, words, started)]
        monkeypatch.setattr(processes, "of_program", lambda _, running=running: running)
        programs.say("containerd", "version = 2\n" + _handler())
        assert answer.of_containerd(there).known is found
    monkeypatch.setattr(processes, "of_program", lambda _: [])
    assert answer.of_containerd(there).why == "containerd does not run"


def test_what_containerd_would_not_start_with_is_told(programs: Programs, tmp_path: Path) -> None:
    programs.say("containerd", "", code=1, error="containerd: failed to load TOML")
    found = answer.of_files(place(tmp_path, main=tmp_path / "config"))
    assert found.known is False
    assert "failed to load TOML" in found.why


def test_a_handler_that_containerd_leaves_out_is_told(programs: Programs, tmp_path: Path) -> None:
    programs.say("containerd", "version = 2\n")
    found = answer.of_containerd(place(tmp_path, main=tmp_path / "config"))
    assert found.known is False
    assert found.why.endswith("config dump has no such handler")


def test_a_k3s_that_has_not_made_its_file_anew_has_not_read_the_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generated = tmp_path / "config.toml"
    generated.write_text("version = 2\n")
    there = place(tmp_path, main=generated, owner="k3s")
    written = (tmp_path / "config").stat().st_mtime
    words = ("containerd", "-c", str(generated))
    running = [processes.Process(7, words, written - 60)]
    monkeypatch.setattr(processes, "of_program", lambda _: running)
    assert answer.of_containerd(there).known is False
    generated.write_text(f"version = 2\n{_handler()}")
    running[:] = [processes.Process(7, words, generated.stat().st_mtime + 1)]
    assert answer.of_containerd(there) == Answer(True, False, LAUNCHER)
    running.clear()
    assert answer.of_containerd(there).why == "k3s does not run"


def test_crio_is_asked_for_its_configuration(programs: Programs, tmp_path: Path) -> None:
    programs.say("crio", CRIO)
    assert answer.of_crio(place(tmp_path)) == Answer(True, True, LAUNCHER)
    programs.say("crio", "", code=1, error="connection refused")
    assert answer.of_crio(place(tmp_path)).known is None


def test_podman_is_asked_for_the_runtime(programs: Programs, tmp_path: Path) -> None:
    info = {"host": {"ociRuntime": {"name": "gpushare", "path": str(LAUNCHER)}}}
    programs.say("podman", json.dumps(info))
    assert answer.of_podman(place(tmp_path)) == Answer(True, True, LAUNCHER)
    refusal = 'Error: default OCI runtime "gpushare" not found: invalid argument'
    programs.say("podman", "", code=125, error=refusal)
    assert answer.of_podman(place(tmp_path)).known is False


def _handler() -> str:
    name = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.gpushare.options]'
    return f'{name}\nBinaryName = "{LAUNCHER}"\n'


def test_a_process_is_found_with_its_words_and_its_age(tmp_path: Path) -> None:
    folder = tmp_path / "77"
    folder.mkdir()
    ticks = 5 * os.sysconf("SC_CLK_TCK")
    (folder / "stat").write_text(f"77 (containerd) S {' '.join(['0'] * 18)} {ticks} 0\n")
    (folder / "cmdline").write_bytes(b"containerd\0--config=/x\0")
    (found,) = processes.of_program("containerd", tmp_path, booted=1000.0)
    assert (found.pid, found.started, found.value("--config")) == (77, 1005.0, "/x")
    assert processes.of_program("dockerd", tmp_path) == []


@pytest.fixture
def crio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: Programs) -> Place:
    """A machine with CRI-O alone, and the runtime registered with it."""
    launcher = programs.folder / "gpushare-runtime"
    launcher.write_text("")
    launcher.chmod(0o755)
    there = place(tmp_path)
    one = engine.Engine("crio", "crio", (tmp_path,), lambda _, __: there, answer.of_crio)
    monkeypatch.setattr(install, "current", lambda: install.Installation(tmp_path))
    monkeypatch.setattr("gpushare.cli.runtime.ENGINES", {"crio": one})
    monkeypatch.setattr("gpushare.cli.runtime.find", lambda _: one)
    for change in registration.configure(there, launcher, default=False):
        change.apply()
    return there


def status(*more: str) -> tuple[int, str]:
    result = CliRunner().invoke(gpushare, ["runtime", "status", *more])
    return result.exit_code, result.output


def test_status_compares_the_file_with_the_running_engine(crio: Place, programs: Programs) -> None:
    launcher = registration.registered(crio.files[0])
    programs.say("crio", CRIO.replace(str(LAUNCHER), str(launcher)))
    code, said = status()
    assert code == 0
    assert f"crio    registered  {crio.path}  yes      yes" in said
    programs.say("crio", "[crio.runtime]\n")
    code, said = status("--json")
    assert code == 4
    (row,) = json.loads(said)
    assert row["word"] == "unread"
    assert row["known"] is False
    assert row["fix"] == "restart"
    assert launcher is not None
    launcher.unlink()
    code, said = status()
    assert code == 4
    assert f"crio: {launcher} is not there" in said


def test_status_of_an_engine_without_the_runtime_is_4(crio: Place) -> None:
    for change in registration.unconfigure(crio):
        change.apply()
    code, said = status("--runtime", "crio")
    assert code == 4
    assert "next: gpushare runtime configure --runtime crio" in said


def test_status_of_an_engine_that_is_not_here_says_so(
    crio: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = engine.Engine("crio", "crio", (tmp_path / "no",), lambda _, __: crio, answer.of_crio)
    monkeypatch.setattr("gpushare.cli.runtime.find", lambda _: one)
    code, said = status("--runtime", "crio")
    assert code == 4
    assert said.splitlines()[-1] == "crio: not on this machine"


def test_a_launcher_of_another_installation_is_told(crio: Place, tmp_path: Path) -> None:
    one = engine.Engine("crio", "crio", (tmp_path,), lambda _, __: crio, lambda _: Answer(True))
    found = look(one, Path("/usr/local/lib/gpushare/current/bin/gpushare-runtime"))
    assert found.current is False
    assert "is not the installed" in found.remarks[0]


def test_configure_says_that_the_running_engine_does_not_know_it(
    crio: Place, programs: Programs
) -> None:
    launcher = str(registration.registered(crio.files[0]))
    words = ["runtime", "configure", "--runtime", "crio", "--launcher", launcher]
    programs.say("crio", "[crio.runtime]\n")
    result = CliRunner().invoke(gpushare, words)
    assert "the running engine does not know it yet: restart it" in result.output
    assert "next: restart (restart: containers run on)" in result.output
    programs.say("crio", CRIO.replace(str(LAUNCHER), launcher))
    result = CliRunner().invoke(gpushare, words)
    assert "ok: the running crio knows it" in result.output
    assert "next:" not in result.output
