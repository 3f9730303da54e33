# SPDX-License-Identifier: Apache-2.0
"""`gpushare verify` of a share: two real tenants, the figures of both, and a verdict.

How exact a share is on a busy machine is for `./dev bench shares`: here the verdict follows.
"""

from __future__ import annotations

import json
import subprocess

from gpushare.verify.compute import TOLERANCE
from tests.stack import Stack


def test_it_measures_a_share_on_this_host() -> None:
    with Stack(time_scale=8) as stack:  # the machine's jitter is little of a window
        stack.start_daemon()
        done = subprocess.run(
            [*stack.cli, "verify", "--cores", "30", "--runtime", "host", "--json"],
            env=stack.environment,
            check=False,
            capture_output=True,
            text=True,
        )
        assert stack.client.tenants() == []
    share, together = json.loads(done.stdout)
    figures = share["figures"]
    assert figures["requested_percent"] == 30
    assert 15 < figures["charged_percent"] < 45 < figures["aggregate_percent"]
    assert figures["driver_percent"] is not None
    if share["passed"]:
        assert figures["error_points"] <= TOLERANCE
    assert done.returncode == (0 if share["passed"] and together["passed"] else 1), done.stderr
