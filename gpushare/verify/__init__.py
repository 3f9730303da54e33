# SPDX-License-Identifier: Apache-2.0
"""Scenarios that prove on a host what gpushare claims: for `verify`, the demo, the e2e tests.

from gpushare.verify import Docker, Report, Scenario
Scenario(Docker(), ["gpushare"], Report(sys.stdout)).run()
"""

from .cores import Cores, Trial
from .engine import Containerd, Docker, Engine, Host, spawn
from .memory import Scenario
from .report import Check, Report
from .stage import Sizes
from .tenant import ProbeFailed, Tenant

__all__ = [
    "Check",
    "Containerd",
    "Cores",
    "Docker",
    "Engine",
    "Host",
    "ProbeFailed",
    "Report",
    "Scenario",
    "Sizes",
    "Tenant",
    "Trial",
    "spawn",
]
