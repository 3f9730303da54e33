# SPDX-License-Identifier: Apache-2.0
"""`./dev demo` itself: it leaves nothing, and it fails when a claim does.

That it holds is seen in test_readme.py, where it is run as typed.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpushare.verify import MemoryScenario, Report
from tests import leftovers
from tests.demo import Compute
from tests.stack import Stack

DEMO = [sys.executable, "-m", "tests.demo"]
ROOT = Path(__file__).resolve().parents[2]


def left_behind(said: str) -> dict[str, list[str]]:
    """Return what is left of the stack whose folder the demo named in `said`."""
    found = re.search(r"all in (/var/tmp/(gpushare-[0-9a-f]+))", said)
    assert found is not None, said
    root, name = Path(found[1]), found[2]
    everything = {
        "folder": [str(root)] if root.exists() else [],
        "mounts": leftovers.mounts_under(root),
        "cgroups": [str(path) for path in leftovers.cgroups_named(name)],
        "processes": subprocess.run(
            ["pgrep", "--full", name], check=False, capture_output=True, text=True
        ).stdout.split(),
    }
    return {kind: things for kind, things in everything.items() if things}


def traces() -> list[str]:
    return [path for path in leftovers.TRACES if Path(path).exists()]


def test_it_leaves_nothing_behind_when_stopped() -> None:
    said = []
    # A run of these tests that was put into the background has SIGINT ignored, and hands that on.
    words = ["env", "--default-signal=INT", *DEMO, "--keep"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            said.append(line)
            if "Ctrl-C here stops and removes it" in line:
                break
        demo.send_signal(signal.SIGINT)
        assert demo.wait(timeout=60) == 0
    assert not left_behind("".join(said))


def test_its_claims_fail_where_nothing_enforces_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    """The filters replaced by the bare driver, and an audit that looks on.

    A scenario that still held would prove nothing.
    """
    # What is waited for in vain is not waited for long.
    monkeypatch.setattr("gpushare.verify.scenario.SETTLE_SECONDS", 1.0)
    with Stack() as stack:
        settings = yaml.safe_load(stack.config.read_text())
        settings["audit"] = {"over_quota": "observe"}
        stack.config.write_text(yaml.safe_dump(settings))
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            shutil.copy(stack.installation.simulator / name, stack.installation.libraries / name)
        stack.start_daemon()
        report = Report()
        assert not MemoryScenario(stack.host(), stack.cli, report).run()
        assert "train sees a card of 4 GiB" in [c.claim for c in report.checks if not c.passed]
        monkeypatch.setattr("tests.demo.TRIES", 1)
        about_compute = Report()
        assert not Compute(stack.host(), stack.cli, about_compute).run()
        assert not any(check.passed for check in about_compute.checks)
