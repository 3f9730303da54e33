# SPDX-License-Identifier: Apache-2.0
"""A run of tests that test_interrupted.py interrupts: it starts everything that a run may leave."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

from tests import leftovers
from tests.stack import Stack


def test_that_takes_its_time(stack: Stack, tmp_path: Path) -> None:
    stack.start_containerd()
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(mounted)], check=True)
    if leftovers.NOTES in os.environ:
        # What has no parent left only a supervisor finds.
        stack.start("sleep", ["setsid", "--fork", "sleep", "1000"])
    ready = Path(os.environ["SMALL_RUN"])
    ready.with_suffix(".part").write_text(json.dumps([str(stack.root), str(mounted), os.getppid()]))
    ready.with_suffix(".part").rename(ready)
    time.sleep(1000)
