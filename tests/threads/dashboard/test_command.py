# SPDX-License-Identifier: Apache-2.0
"""`gpushare dashboard` as a command: its address, its end, and what it lacks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from gpushare import dashboard
from gpushare.cli import gpushare

if TYPE_CHECKING:
    from tests.unit.cli.fake_daemon import AnsweringDaemon

PROGRAM = str(Path(sys.executable).parent / "gpushare")


def test_without_the_libraries_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "gpushare.dashboard.server", raising=False)
    monkeypatch.delattr(dashboard, "server", raising=False)
    done = CliRunner().invoke(gpushare, ["dashboard"])
    assert done.exit_code == 1
    assert "the extra `dashboard`" in done.stderr


@pytest.mark.parametrize("words", [["--json"], []])
def test_it_prints_its_address_and_ends_with_status_0(
    daemon: AnsweringDaemon, tmp_path: Path, words: list[str]
) -> None:
    daemon.answers["status"] = [{"ok": True, "config": ""}]
    path = tmp_path / "dashboard.sock"
    argv = [PROGRAM, "--socket", str(daemon.path), "dashboard", "--listen", f"unix:{path}", *words]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        shown = ""
        while "unix:" not in shown or (words and "}" not in shown):
            line = running.stdout.readline()
            assert line, "it has ended"
            shown += line
        running.send_signal(signal.SIGTERM)
        assert running.wait() == 0
    assert (json.loads(shown)["address"] if words else shown.strip()) == f"unix:{path}"
    assert not path.exists()


def test_a_network_without_a_proof_is_refused(daemon: AnsweringDaemon) -> None:
    daemon.answers["status"] = [{"ok": True, "config": ""}]
    words = ["--socket", str(daemon.path), "dashboard", "--listen", "0.0.0.0:1"]
    done = CliRunner().invoke(gpushare, words)
    assert done.exit_code == 2
    assert "Add --token-file FILE" in done.stderr
