# SPDX-License-Identifier: Apache-2.0
"""`gpushare verify`: what it asks for of a card that others use, and what stops it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from gpushare.checks import Check, engines, machine
from gpushare.verify import AuditScenario, AuditTrial, Docker, HostRunner, Report
from gpushare.verify import audit as scenario
from tests.unit.cli.conftest import CARD
from tests.unit.cli.fake_daemon import AnsweringDaemon, rows
from tests.unit.cli.test_audit import NOTHING, PROBE, AuditedTenantClient
from tests.unit.cli.test_doctor_scheduler import LISTENERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from gpushare.client import Client

    Cli = Callable[..., Result]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo cannot connect >&2; exit 1",
            "gpushare: docker image ls --quiet gpushare-probe:latest failed: cannot connect\n",
        ),
        (None, "gpushare: docker is not installed. Install it, or use another --runtime.\n"),
    ],
)
def test_an_engine_that_does_not_answer_is_no_bug(
    cli: Cli,
    daemon: AnsweringDaemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str | None,
    said: str,
) -> None:
    daemon.answers["cards"] = rows(CARD)
    monkeypatch.setattr("gpushare.verify.image.build", lambda _: b"")
    monkeypatch.setenv("PATH", str(tmp_path))
    if script is not None:
        (tmp_path / "docker").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "docker").chmod(0o755)
    result = cli("verify", "--runtime", "docker")
    assert (result.exit_code, result.stderr) == (1, said)


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
        monkeypatch.setattr(engines, "PATH", str(root))
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
    check = engines.check_docker_gpus()
    assert check.level == "ok"
    assert "refused by dockerd (could not select device driver)" in check.text
    assert said in check.fix
    assert not_said not in check.fix


def test_for_a_silent_docker_the_portable_option_is_shown(docker: DockerInstallation) -> None:
    docker.program("docker", "echo no such host >&2; exit 1")
    assert engines.check_docker_gpus().fix == (
        "use -e GPUSHARE_MEMORY=4GiB, or -e GPUSHARE_COUNT=1 for a whole card"
    )


def test_with_the_hook_it_is_taken(docker: DockerInstallation) -> None:
    path = docker.program(engines.HOOK)
    assert engines.check_docker_gpus() == Check("ok", f"docker run --gpus: accepted, with {path}")


@pytest.mark.parametrize(("version", "taken"), [("28.2.2", False), ("28.3.0", True)])
def test_with_the_hook_of_cdi_alone_the_version_decides(
    docker: DockerInstallation, version: str, *, taken: bool
) -> None:
    docker.answers(version)
    docker.program(engines.CDI_HOOK)
    assert ("accepted, as a CDI device" in engines.check_docker_gpus().text) == taken


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
        ("freeze", [SEEN, FROZEN], [("the audit detected it", True), ("gpushared froze it", True)]),
        ("freeze", [NOTHING], [("the audit detected it", False)]),
        ("freeze", [SEEN], [("the audit detected it", True), ("gpushared froze it", False)]),
        ("kill", [FROZEN], [("the audit detected it", True), ("gpushared killed it", False)]),
        (
            "observe",
            [SEEN],
            [
                ("the audit detected it", True),
                ("nothing was done about it: audit.over_quota is observe", True),
            ],
        ),
        (
            "observe",
            [SEEN, FROZEN],
            [
                ("the audit detected it", True),
                ("nothing was done about it: audit.over_quota is observe", False),
            ],
        ),
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
        [check] = machine.check_orphaned_scheduler(tmp_path, LISTENERS)
    assert check.text.startswith("scheduler: running without gpushared")
