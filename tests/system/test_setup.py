# SPDX-License-Identifier: Apache-2.0
"""From an installed package to a tenant and back, by the commands of the README.

On a machine of its own: what setup writes lands in overlays of this machine's folders.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from .own_machine import WRITTEN, OwnMachine

PROGRAMS = Path(sys.executable).parent
GPUSHARE = f"{PROGRAMS}/gpushare"
SETUP = f"{GPUSHARE} setup --simulate h200 --runtime docker --runtime containerd"
DOCKER = "/etc/docker/daemon.json"
FILES = f"find {' '.join(WRITTEN)} | sort"


@pytest.mark.gate
def test_set_up_it_serves_and_undone_nothing_is_left(tmp_path: Path) -> None:
    machine = OwnMachine(tmp_path)
    try:
        machine.run(f"mkdir /etc/docker && echo '{{\"debug\": true}}' >{DOCKER}")
        machine.run("rm -rf /etc/containerd/config.toml")
        before = machine.run(FILES)
        machine.run(SETUP)
        machine.start_gpushared([str(PROGRAMS / "gpushared")])
        lines = machine.run(f"{GPUSHARE} doctor").splitlines()
        for engine in ("docker", "containerd"):
            registered = f"ok    {engine}: runtime gpushare registered"
            assert any(line.startswith(registered) for line in lines)
        assert not [line for line in lines if line.startswith("fail")]
        again = machine.run(f"{SETUP} --dry-run").splitlines()
        assert not [line for line in again if line.startswith("would ")], "a second setup changes"
        probe = "/usr/local/lib/gpushare/current/lib/gpushare-probe info"
        said = machine.run(f"{GPUSHARE} run --memory 2GiB -- {probe}").splitlines()
        assert json.loads(said[-1])["total"] == 2 << 30
        machine.run(f"{GPUSHARE} setup --undo")
        assert machine.run(f"cat {DOCKER}") == '{"debug": true}\n'
        assert machine.run(FILES) == before
    finally:
        machine.close()
