# SPDX-License-Identifier: Apache-2.0
"""Each rule records what it should, fires where it should, and rests on what exists."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from gpushare.cli.metrics import RULES, read
from gpushare.events import KEPT
from gpushare.exporter.exposition import FAMILIES

GIB = 1 << 30
NODE = 'node="n"'
CARD = 'node="n",gpu_uuid="GPU-0",gpu_index="0",model="H200"'
TENANT = 'node="n",container_id="c",container="main",pod="p",namespace="t",mode="shared",policy="x"'
PART = f'gpu_uuid="GPU-0",gpu_index="0",{TENANT}'
ALWAYS = "x180"  # promtool's "and so on": every minute for three hours

Series = Mapping[str, str]


@dataclass(frozen=True)
class AlertCase:
    """Series with values by the minute, as promtool writes them, and the time of the query."""

    fires: Series
    quiet: Series
    at: str = "30m"


def memory(used: int, asked: int, limit: int | None = None) -> Series:
    name = "gpushare_container_memory_used_bytes"
    return {
        f'{name}{{{PART},kind="buffers"}}': f"{used // 2 * GIB}{ALWAYS}",
        f'{name}{{{PART},kind="contexts"}}': f"{(used - used // 2) * GIB}{ALWAYS}",
        f"gpushare_container_memory_quota_bytes{{{PART}}}": f"{asked * GIB}{ALWAYS}",
        f"gpushare_container_memory_limit_bytes{{{PART}}}": f"{(limit or asked) * GIB}{ALWAYS}",
    }


def one(name: str, labels: str, *, fires: str, quiet: str, at: str = "30m") -> AlertCase:
    """Return the case of one series."""
    series = f"{name}{{{labels}}}"
    return AlertCase({series: fires}, {series: quiet}, at)


def compute(had: float, asked: float) -> Series:
    return {
        f'gpushare_container_cores_utilization_ratio{{{PART},source="nvml"}}': f"{had}{ALWAYS}",
        f"gpushare_container_cores_quota_ratio{{{PART}}}": f"{asked}{ALWAYS}",
    }


def drift(gib: int) -> Series:
    return {
        f"gpushare_card_accounting_drift_bytes{{{CARD}}}": f"{gib * GIB}{ALWAYS}",
        f"gpushare_card_memory_capacity_bytes{{{CARD}}}": f"{140 * GIB}{ALWAYS}",
    }


def scheduler(shares: int) -> Series:
    return {
        f"gpushare_scheduler_up{{{NODE}}}": f"0{ALWAYS}",
        f"gpushare_card_tenants{{{CARD}}}": f"{shares}{ALWAYS}",
    }


def slow(bucket: str) -> Series:
    """Return a histogram of which all that took longest are within `bucket`."""
    bounds = ("0.5", "1.0", "2.5", "+Inf")
    return {
        f'gpushare_operation_duration_seconds_bucket{{{NODE},operation="create",le="{bound}"}}': (
            "0+60x180" if bounds.index(bound) >= bounds.index(bucket) else "0x180"
        )
        for bound in bounds
    }


ONCE = "0x10 1x170"  # in the eleventh minute
ZERO, ONE = f"0{ALWAYS}", f"1{ALWAYS}"

CASES: Mapping[str, AlertCase] = {
    "GpushareDown": one("gpushare_up", NODE, fires="1x25 0x100", quiet="1x29 0x0 1x100"),
    "GpushareDriverDown": one("gpushare_driver_up", NODE, fires=ZERO, quiet="1x28 0x1 1x100"),
    "GpushareSchedulerDown": AlertCase(scheduler(2), scheduler(0)),
    "GpushareOperationFailures": one(
        "gpushare_operation_failures_total",
        f'{NODE},operation="create",code="internal"',
        fires="0x20 1x100",
        quiet=ONE,
    ),
    "GpushareOperationSlow": AlertCase(slow("2.5"), slow("1.0")),
    "GpushareLedgerDamaged": one(
        "gpushare_events_total", f'{NODE},event="ledger-damaged"', fires=ONCE, quiet=ZERO
    ),
    "GpushareHistoryEventsDropped": one(
        "gpushare_history_events_dropped_total", NODE, fires="0x20 9x100", quiet=f"9{ALWAYS}"
    ),
    "GpushareMpsServerFault": one(
        "gpushare_events_total", f'{NODE},event="mps-server-faulted"', fires="0x20 1x100", quiet=ONE
    ),
    "GpushareStartWaits": one(
        "gpushare_queue_oldest_wait_seconds",
        NODE,
        fires=f"14460{ALWAYS}",
        quiet=f"14340{ALWAYS}",
    ),
    "GpushareCardUnhealthy": one("gpushare_card_healthy", CARD, fires=ZERO, quiet=ONE),
    "GpushareCardXidErrors": one(
        "gpushare_card_xid_errors_total", f'{CARD},xid="79"', fires="0x20 1x100", quiet=ONE
    ),
    "GpushareNonTenantProcesses": one(
        "gpushare_card_non_tenant_processes",
        f'{CARD},action="warn"',
        fires="2x180",
        quiet="0x28 2x100",
    ),
    "GpushareAccountingDrift": AlertCase(drift(-8), drift(-6)),
    "GpushareMemoryWasted": AlertCase(memory(1, 4), memory(2, 4), at="2h"),
    "GpushareComputeWasted": AlertCase(compute(0.02, 0.3), compute(0.2, 0.3), at="2h"),
    "GpushareMemoryNearLimit": AlertCase(memory(39, 40), memory(39, 40, 60)),
    "GpushareAllocationsDenied": one(
        "gpushare_container_allocations_denied_total",
        f'{TENANT},reason="over-quota"',
        fires="0x27 3x100",
        quiet=ONCE,
    ),
    "GpushareOverQuota": one(
        "gpushare_container_memory_over_quota_bytes", PART, fires=f"{GIB}{ALWAYS}", quiet=ZERO
    ),
    "GpushareFrozenByAudit": one(
        "gpushare_container_frozen", f'{TENANT},by="audit"', fires="0x29 1x100", quiet=ZERO
    ),
    "GpushareContainerIdle": one(
        "gpushare_container_idle_seconds", TENANT, fires=f"7200{ALWAYS}", quiet=ZERO
    ),
    "GpushareEvictionLost": one(
        "gpushare_container_eviction_state",
        f'{TENANT},state="failed"',
        fires="0x29 1x100",
        quiet=ZERO,
    ),
    "GpushareRestoreWaits": one(
        "gpushare_container_restore_wait_seconds",
        TENANT,
        fires="0x15 0+60x180",
        quiet="0x21 0+60x180",
    ),
    "GpushareGateBypassed": one("gpushare_container_gate_bypassed", PART, fires=ONE, quiet=ZERO),
    "GpushareContainerHung": one("gpushare_container_hung", PART, fires=ONE, quiet=ZERO),
    "GpushareThrottled": one(
        "gpushare_container_throttled_seconds_total", PART, fires="0+40x180", quiet="0+20x180"
    ),
    "GpushareForcedLaunches": one(
        "gpushare_container_forced_launches_total", PART, fires="0x25 1x100", quiet=ONE
    ),
}


SPACE = 'node="n", mode="shared", namespace="t"'
#: Of each recorded series: what it is made of, its labels, and its value after half an hour.
RECORDS: Mapping[str, tuple[Series, str, float]] = {
    "container:gpushare_memory_used:ratio": (memory(1, 4), PART, 0.25),
    "container:gpushare_memory_wasted:bool": (memory(1, 4), PART, 1),
    "container:gpushare_cores_used:ratio": (compute(0.2, 0.3), PART, 0.2),
    "namespace:gpushare_gpu_time:rate5m": (
        {f"gpushare_container_gpu_time_seconds_total{{{PART}}}": "0+15x180"},
        SPACE,
        0.25,
    ),
    "namespace:gpushare_memory_quota_bytes:sum": (memory(1, 4), SPACE, 4 * GIB),
    "namespace:gpushare_memory_used_bytes:sum": (memory(1, 4), SPACE, GIB),
}


def rules(kind: str = "alert") -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(read(RULES))["groups"]
    return {rule[kind]: rule for group in groups for rule in group["rules"] if kind in rule}


def test_each_rule_has_a_case() -> None:
    assert sorted(rules()) == sorted(CASES)
    assert sorted(rules("record")) == sorted(RECORDS)


@pytest.mark.parametrize("alert", sorted(CASES))
def test_a_rule_rests_on_families_and_labels_that_exist(alert: str) -> None:
    labels = {family.name: set(family.labels) for family in FAMILIES}
    for family in FAMILIES:
        if family.kind == "histogram":
            labels[f"{family.name}_bucket"] = {*family.labels, "le"}
    expression = rules()[alert]["expr"]
    used = re.findall(r"(gpushare_\w+)(?:\{([^}]*)\})?", expression)
    assert used
    for name, matchers in used:
        assert name in labels, name
        assert set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", matchers)) <= labels[name]
    events = re.search(r'event=~"([^"]*)"', expression)
    assert set(events[1].split("|") if events else ()) <= KEPT.keys()


@pytest.mark.parametrize("alert", sorted(CASES))
def test_a_rule_states_severity_subject_and_remedy(alert: str) -> None:
    rule = rules()[alert]
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert "{{ $labels.node }}" in rule["annotations"]["summary"]
    assert rule["annotations"]["description"].endswith(".")
    series = {**CASES[alert].fires, **CASES[alert].quiet}
    names = {label for text in series for label in re.findall(r"(\w+)=", text)}
    shown = re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))
    assert set(shown) <= names
