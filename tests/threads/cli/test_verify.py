# SPDX-License-Identifier: Apache-2.0
"""`gpushare verify` and its probe, `audit --self-test`, and what `doctor` says of docker."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import Result

from gpushare import checks, simulator
from gpushare.checks import Check
from gpushare.client import Client
from gpushare.install import InstallSource
from gpushare.simulator import device_file
from gpushare.verify import Report, image
from gpushare.verify import audit as scenario
from gpushare.verify.audit import AuditScenario, AuditTrial
from gpushare.verify.runners import (
    Containerd,
    Docker,
    EngineFailed,
    HostRunner,
    ProbeFailed,
    ProbeTenant,
)
from tests.unit.cli.conftest import CARD
from tests.unit.cli.fake_daemon import AnsweringDaemon, rows
from tests.unit.cli.test_audit import NOTHING, PROBE, AuditedTenantClient
from tests.unit.cli.test_doctor_scheduler import LISTENERS

Cli = Callable[..., Result]


@pytest.mark.parametrize("is_there", [True, False])
def test_an_engine_that_does_not_answer_is_no_bug(
    cli: Cli,
    daemon: AnsweringDaemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_there: bool,
) -> None:
    daemon.answers["cards"] = rows(CARD)
    monkeypatch.setattr("gpushare.verify.image.build", lambda _: b"")
    monkeypatch.setenv("PATH", str(tmp_path))
    said = "docker is not installed. Install it, or use another --runtime."
    if is_there:
        said = "docker image ls --quiet gpushare-probe:latest failed: cannot connect"
        (tmp_path / "docker").write_text("#!/bin/sh\necho cannot connect >&2; exit 1\n")
        (tmp_path / "docker").chmod(0o755)
    result = cli("verify", "--runtime", "docker")
    assert (result.exit_code, result.stderr) == (1, f"gpushare: {said}\n")


@pytest.mark.parametrize("had", ["", "2f1960326f53"])
def test_an_image_that_was_there_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, had: str
) -> None:
    monkeypatch.setattr("gpushare.verify.image.build", lambda _: b"")
    calls = tmp_path / "calls"
    script = f"echo $* >> {calls}; case $2 in ls) printf %s {had};; esac"
    (tmp_path / "docker").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "docker").chmod(0o755)
    engine = Docker(env={"PATH": str(tmp_path)})
    engine.prepare(tmp_path)
    engine.finish()
    removed = "image rm --force gpushare-probe:latest" in calls.read_text()
    assert removed is not bool(had)


class DockerInstallation:
    """A machine's docker: its version, and the programs where dockerd looks for them."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        monkeypatch.setattr(checks, "PATH", str(root))
        monkeypatch.setenv("PATH", f"{root}:/usr/bin:/bin")

    def program(self, name: str, script: str = "") -> str:
        path = self.root / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    def answers(self, version: str) -> None:
        self.program("docker", f"echo {version}")


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DockerInstallation:
    return DockerInstallation(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("version", "said", "not_said"),
    [
        ("20.10.24+dfsg1", "-e GPUSHARE_MEMORY=4GiB", "--device"),
        ("26.1.5", '"features": {"cdi": true}', "nvidia-ctk"),
        ("28.2.0", "or --device nvidia.com/gpu=0", "features"),
        ("29.0.1", "or --device nvidia.com/gpu=0", "features"),
    ],
)
def test_without_nvidias_toolkit_the_message_says_what_to_write(
    docker: DockerInstallation, version: str, said: str, not_said: str
) -> None:
    docker.answers(version)
    check = checks.check_docker_gpus()
    assert check.level == "ok"
    assert "refused by dockerd (could not select device driver)" in check.text
    assert said in check.fix
    assert not_said not in check.fix


def test_for_a_silent_docker_the_portable_option_is_shown(docker: DockerInstallation) -> None:
    docker.program("docker", "echo no such host >&2; exit 1")
    assert checks.check_docker_gpus().fix == (
        "use -e GPUSHARE_MEMORY=4GiB, or -e GPUSHARE_COUNT=1 for a whole card"
    )


def test_with_the_hook_it_is_taken(docker: DockerInstallation) -> None:
    path = docker.program(checks.HOOK)
    assert checks.check_docker_gpus() == Check("ok", f"docker run --gpus: accepted, with {path}")


@pytest.mark.parametrize(("version", "taken"), [("28.2.2", False), ("28.3.0", True)])
def test_with_the_hook_of_cdi_alone_the_version_decides(
    docker: DockerInstallation, version: str, *, taken: bool
) -> None:
    docker.answers(version)
    docker.program(checks.CDI_HOOK)
    assert ("accepted, as a CDI device" in checks.check_docker_gpus().text) == taken


DETECTED = "the audit detected it"

OBSERVED = "nothing was done about it: audit.over_quota is observe"

SEEN = {"over": "seen"}

WARNED = {**SEEN, "warnings": ["it bypasses the interposer library"]}

FROZEN = {**WARNED, "over": "frozen", "interventions": [{"by": "audit"}]}


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[list[tuple[str, bool]], AuditedTenantClient]]:
    """Run the scenario with a probe that is a script, and a daemon that is a list of states."""
    monkeypatch.setattr(scenario, "DETECT_SECONDS", 0.3)
    monkeypatch.setattr(scenario, "ACT_SECONDS", dict.fromkeys(scenario.ACT_SECONDS, 0.3))

    def made(
        action: str, *states: dict[str, Any], code: int = 0, isolation: str = "interposer"
    ) -> tuple[list[tuple[str, bool]], AuditedTenantClient]:
        probe = tmp_path / "probe"
        probe.write_text(PROBE % code)
        probe.chmod(0o755)
        daemon = AuditedTenantClient(action, [NOTHING, *states], isolation)
        report = Report()
        runner = HostRunner([], probe)
        monkeypatch.setattr(runner, "run", lambda *_: [str(probe)])
        trial = AuditTrial(0, cast("Client", daemon))
        AuditScenario(runner, [], report, trial=trial).run()
        claims = [(one.claim.partition(" after ")[0], one.passed) for one in report.checks]
        return claims, daemon

    return made


@pytest.mark.parametrize(
    ("action", "states", "expected"),
    [
        ("freeze", [SEEN, FROZEN], [(DETECTED, True), ("gpushared froze it", True)]),
        ("freeze", [NOTHING], [(DETECTED, False)]),
        ("freeze", [SEEN], [(DETECTED, True), ("gpushared froze it", False)]),
        ("kill", [FROZEN], [(DETECTED, True), ("gpushared killed it", False)]),
        ("observe", [SEEN], [(DETECTED, True), (OBSERVED, True)]),
        ("observe", [SEEN, FROZEN], [(DETECTED, True), (OBSERVED, False)]),
    ],
)
def test_each_outcome_is_judged_by_the_configured_action(
    run: Callable[..., tuple[list[tuple[str, bool]], AuditedTenantClient]],
    action: str,
    states: list[dict[str, Any]],
    expected: list[tuple[str, bool]],
) -> None:
    found, daemon = run(action, *states)
    assert found == [("it allocates 2 GiB past the library, of a quota of 1 GiB", True), *expected]
    assert daemon.stopped == ["k"]


def test_a_driver_with_limits_of_its_own_refuses_it(
    run: Callable[..., tuple[list[tuple[str, bool]], AuditedTenantClient]],
) -> None:
    found, daemon = run("freeze", code=2, isolation="driver")
    assert found == [("the driver itself refuses more than the quota", True)]
    assert daemon.stopped == ["k"]


def test_an_allocation_that_fails_is_no_success(
    run: Callable[..., tuple[list[tuple[str, bool]], AuditedTenantClient]],
) -> None:
    found, _ = run("freeze", code=2)
    assert found == [("it allocates 2 GiB past the library, of a quota of 1 GiB", False)]


def test_a_scheduler_that_still_runs_is_reported(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "scheduler.sock"))
        listener.listen()
        [check] = checks.check_orphaned_scheduler(tmp_path, LISTENERS)
    assert check.text.startswith("scheduler: running without gpushared")


PROGRAM = InstallSource.of_package().libraries / "gpushare-probe"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    card = simulator.create(tmp_path, "t4")
    return {**os.environ, **card.env, "LD_LIBRARY_PATH": str(device_file.libraries())}


def test_it_knows_what_it_has_written(env: dict[str, str]) -> None:
    sizes = {"cuMemAlloc": (5 << 20) + 24, "cuMemAllocAsync": 1 << 20, "cuArrayCreate": 1 << 20}
    with ProbeTenant("probe", [str(PROGRAM)], env) as probe:
        probe.start()
        for api, size in sizes.items():
            assert probe.ask(f"alloc {api} {size}")["code"] == 0
        linear = sizes["cuMemAlloc"] + sizes["cuMemAllocAsync"]
        written = {"bytes": linear, "different": 0, "code": 0, "result": "CUDA_SUCCESS"}
        assert probe.ask("write 7") == written | {"event": "write"}
        assert probe.ask("check 7") == written | {"event": "check"}
        assert probe.ask("check 8")["different"] == linear
        # A buffer that was not written.
        assert probe.ask(f"alloc cuMemAlloc {1 << 20}")["code"] == 0
        assert probe.ask("check 7")["different"] > 0


def test_it_keeps_the_card_busy_for_the_requested_time(env: dict[str, str]) -> None:
    with ProbeTenant("probe", [str(PROGRAM)], env) as probe:
        probe.start()
        probe.tell("busy 1000000 200000000")
        done = probe.answer("busy")
    assert done["code"] == 0
    assert done["took_ns"] >= 200_000_000
    assert done["asked_ns"] == done["kernels"] * 1_000_000
    assert done["kernels"] >= 20  # two batches of 10 ms are launched whatever becomes of the first
    assert done["asked_ns"] <= done["took_ns"]


@pytest.mark.parametrize("words", [["serve"], ["alloc", "many"], ["--what", "1"], ["--card"]])
def test_a_command_line_that_is_wrong_is_an_error(env: dict[str, str], words: list[str]) -> None:
    done = subprocess.run([str(PROGRAM), *words], check=False, capture_output=True, env=env)
    assert done.returncode == 2
    assert b"usage: gpushare-probe" in done.stderr


def test_a_program_that_is_no_probe_is_recognized_by_its_answer() -> None:
    with (
        ProbeTenant("echo", ["sh", "-c", "echo nothing here; echo why >&2"]) as other,
        pytest.raises(ProbeFailed, match="nothing here"),
    ):
        other.start()


def test_a_probe_that_ends_is_reported_with_its_last_line() -> None:
    with (
        ProbeTenant("gone", ["sh", "-c", "echo out of paper >&2; exit 1"]) as other,
        pytest.raises(ProbeFailed, match="out of paper"),
    ):
        other.start()


def test_its_layer_holds_the_probe_a_loader_and_a_c_library(tmp_path: Path) -> None:
    probe = tmp_path / "probe"
    probe.write_bytes(b"a program")
    with tarfile.open(fileobj=io.BytesIO(image.build(probe))) as archive:
        manifest = json.load(archive.extractfile("manifest.json") or io.BytesIO())
        config = json.load(archive.extractfile(manifest[0]["Config"]) or io.BytesIO())
        layer = archive.extractfile(manifest[0]["Layers"][0])
        assert layer is not None
        with tarfile.open(fileobj=layer) as files:
            names = files.getnames()
    assert manifest[0]["RepoTags"] == [image.TAG]
    assert config["config"]["Cmd"] == [image.PROGRAM]
    assert image.PROGRAM.lstrip("/") in names
    assert any(name.endswith("libc.so.6") for name in names)
    assert any("ld-linux" in name for name in names)


def command(folder: Path, name: str, said: str) -> dict[str, str]:
    """Return an environment whose command `name` fails with `said`."""
    (folder / name).write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    (folder / name).chmod(0o755)
    return {"PATH": str(folder)}


def test_a_missing_containerd_is_reported_in_plain_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "ctr: failed to dial /run/containerd/containerd.sock: context deadline exceeded"
    env = command(tmp_path, "ctr", said)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(EngineFailed) as failure:
        Containerd(Path("/launcher"), env).prepare(Path("/probe"))
    assert str(failure.value) == (
        f"ctr cannot reach its daemon ({said}). Start it, or use another --runtime."
    )
