# SPDX-License-Identifier: Apache-2.0
"""`gpushare doctor --k8s` over real connections."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpushare.checks import kubernetes
from gpushare.cli import gpushare as command_line
from tests.stack.api_server import StandInApiServer
from tests.stack.node_agent import write_kubeconfig
from tests.unit.cli.fake_daemon import AnsweringDaemon, refusal
from tests.unit.kubernetes.test_doctor import Machine

pytestmark = pytest.mark.gate


def test_the_command_prints_the_findings_and_fails(
    tmp_path: Path,
    cluster: StandInApiServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = write_kubeconfig(tmp_path / "kubeconfig", cluster)
    monkeypatch.setattr(kubernetes, "NodeFacts", lambda _mode: Machine(tmp_path).facts)
    daemon = AnsweringDaemon(tmp_path / "control.sock", {"status": refusal("internal", "busy")})
    arguments = ["doctor", "--k8s", "--kubeconfig", str(path), "--node", "N", "--json"]
    with daemon.running():
        result = CliRunner().invoke(command_line, [*arguments, "--socket", str(daemon.path)])
    assert result.exit_code == 4, result.output
    texts = [check["text"] for check in json.loads(result.stdout)]
    assert "daemon: busy" in texts
    assert "node n: not in the cluster" in texts
    assert cluster.tokens[0] == "Bearer t"
