# SPDX-License-Identifier: Apache-2.0
"""Scenarios that test on a host that quotas are enforced: for `verify`, the demo and the tests.

from gpushare.verify import Docker, MemoryScenario, Report
MemoryScenario(Docker(), ["gpushare"], Report(sys.stdout)).run()
"""

from gpushare.verify.audit import AuditScenario, AuditTrial
from gpushare.verify.compute import ComputeScenario, ComputeTrial
from gpushare.verify.memory import EvictionScenario, MemoryScenario
from gpushare.verify.runners import (
    Containerd,
    Docker,
    HostRunner,
    ProbeFailed,
    ProbeTenant,
    TenantRunner,
    spawn,
)
from gpushare.verify.scenario import CheckResult, Report, Sizes

__all__ = [
    "AuditScenario",
    "AuditTrial",
    "CheckResult",
    "ComputeScenario",
    "ComputeTrial",
    "Containerd",
    "Docker",
    "EvictionScenario",
    "HostRunner",
    "MemoryScenario",
    "ProbeFailed",
    "ProbeTenant",
    "Report",
    "Sizes",
    "TenantRunner",
    "spawn",
]
