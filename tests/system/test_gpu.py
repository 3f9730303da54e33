# SPDX-License-Identifier: Apache-2.0
"""`./dev gpu` on the simulated driver: what it measures there holds, and nothing is left out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from gpushare import simulator
from gpushare.simulator import device_file
from tools.gpu.__main__ import PARTS

ROOT = Path(__file__).resolve().parents[2]
#: What measures times for many seconds, or takes more of the host than a machine of the tests has.
LEFT_OUT = {
    "waits",
    "shares",
    "training",
}
#: What a machine of the tests need not have, or a driver in a folder has not.
MAY_BE_MISSING = {"smi", "torch", "host", "runc", "pytorch"}


def test_it_runs_through_on_the_simulated_driver(tmp_path: Path) -> None:
    out = tmp_path / "report.md"
    parts = [part for part in PARTS if part not in LEFT_OUT]
    cards = simulator.create(tmp_path / "cards", cards=2)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tools.gpu",
            *parts,
            "--driver",
            str(device_file.libraries()),
            "--out",
            str(out),
        ],
        cwd=ROOT,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **cards.env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    sections = json.loads(out.with_suffix(".json").read_text())["sections"]
    assert [section["title"] for section in sections] == [PARTS[part].title for part in parts]
    for part, section in zip(parts, sections, strict=True):
        missing = [row["name"] for row in section["rows"] if row["missing"]]
        # The simulated MPS server has no limits.
        known = "the rest of containers"
        assert part in MAY_BE_MISSING or all(name.startswith(known) for name in missing), missing
