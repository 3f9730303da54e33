# SPDX-License-Identifier: Apache-2.0
"""`gpushare verify` and its probe, and `audit --self-test`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from gpushare import simulator
from gpushare.client import Client
from gpushare.install import InstallSource
from gpushare.simulator import device_file
from gpushare.verify import Report
from gpushare.verify import audit as scenario
from gpushare.verify.audit import AuditScenario, AuditTrial
from gpushare.verify.runners import (
    HostRunner,
    ProbeTenant,
)
from tests.unit.cli.conftest import CARD, Cli
from tests.unit.cli.fake_daemon import AnsweringDaemon, rows
from tests.unit.cli.test_verify import NOTHING, PROBE, AuditedTenantClient


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


DETECTED = "the audit detected it"

OBSERVED = "nothing was done about it: audit.over_quota is observe"

SEEN = {"over": "seen"}

WARNED = {**SEEN, "warnings": ["it bypasses the interposer library"]}

FROZEN = {**WARNED, "over": "frozen", "interventions": [{"by": "audit"}]}


RunScenario = Callable[..., tuple[list[tuple[str, bool]], AuditedTenantClient]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunScenario:
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
    run: RunScenario,
    action: str,
    states: list[dict[str, Any]],
    expected: list[tuple[str, bool]],
) -> None:
    found, daemon = run(action, *states)
    assert found == [("it allocates 2 GiB past the library, of a quota of 1 GiB", True), *expected]
    assert daemon.stopped == ["k"]


def test_a_driver_with_limits_of_its_own_refuses_it(
    run: RunScenario,
) -> None:
    found, daemon = run("freeze", code=2, isolation="driver")
    assert found == [("the driver itself refuses more than the quota", True)]
    assert daemon.stopped == ["k"]


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
