# SPDX-License-Identifier: Apache-2.0
"""`gpushare verify` of a share, in slow motion: the machine's jitter is little of a window."""

from __future__ import annotations

import json
import subprocess

from gpushare.client import Client
from tests.stack import Stack

TRIES = 3


def test_it_proves_a_share_on_this_host() -> None:
    with Stack(time_scale=8) as stack:
        stack.start_daemon()
        words = ("verify", "--cores", "30", "--runtime", "host", "--json")
        for _ in range(TRIES):  # something else may have had the processors
            done = subprocess.run(
                [*stack.cli, *words],
                env=stack.environment,
                check=False,
                capture_output=True,
                text=True,
            )
            assert Client(stack.socket).tenants() == []
            if done.returncode == 0:
                break
    assert done.returncode == 0, done.stdout + done.stderr
    share, together = json.loads(done.stdout)
    assert share["figures"]["requested_percent"] == 30
    assert abs(share["figures"]["charged_percent"] - 30) <= 2
    assert abs(share["figures"]["driver_percent"] - 30) <= 2
    assert together["passed"]
