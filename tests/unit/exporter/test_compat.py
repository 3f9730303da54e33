# SPDX-License-Identifier: Apache-2.0
"""Others' names for the same figures: off, unless they are asked for, and in others' units."""

from __future__ import annotations

import subprocess
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpushare.exporter.aliases import COMPAT
from gpushare.exporter.exposition import FAMILIES, expose
from gpushare.exporter.metric_family import Snapshot
from gpushare.metrics_schema import KINDS

from .made import GIB, UUID, card, part, snapshot, tenant

MIB = 1 << 20
POD = ("team", "train-0", "main")
HAMI = dict(zip(("namespace", "pod", "container"), POD, strict=True))


def read(taken: Snapshot, *compat: str) -> list[tuple[str, dict[str, str], float]]:
    text, _ = expose(taken, compat=compat)
    return [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if not sample.name.startswith("gpushare_")
    ]


def test_other_exporters_metrics_are_off_by_default() -> None:
    assert read(snapshot(tenant())) == []
    names = {name for name, _, _ in read(snapshot(tenant()), *COMPAT)}
    assert names == {family.name for families in COMPAT.values() for family in families}
    assert not names & {family.name for family in FAMILIES}


def test_hami_has_bytes_and_percent_by_pod_and_device() -> None:
    kinds = {**dict.fromkeys(KINDS, 0), "buffer": GIB, "pool": GIB, "module": MIB, "context": GIB}
    used = sum(kinds.values())
    made = part(kinds=kinds, used_bytes=used, utilization=29.5)
    labels = {**HAMI, "vdevice_index": "0", "device_uuid": UUID}
    found = {name: value for name, said, value in read(snapshot(tenant(cards=[made])), "hami")
             if said == labels}  # fmt: skip
    assert found == {
        "hami_vgpu_memory_used_bytes": used,
        "hami_vgpu_memory_limit_bytes": 6 * GIB,
        "hami_container_device_memory_bytes": used,
        "hami_container_device_utilization_ratio": 29.5,
        "hami_vgpu_memory_context_bytes": GIB,
        "hami_vgpu_memory_module_bytes": MIB,
        "hami_vgpu_memory_buffer_bytes": 2 * GIB,
    }


def test_dcgm_has_mib_and_percent_by_card() -> None:
    labels = {"gpu": "0", "UUID": UUID, "device": "nvidia0", "modelName": "H200"}
    assert read(snapshot(), "dcgm") == [
        (name, {**labels, "Hostname": "node-1"}, value)
        for name, value in (
            ("DCGM_FI_DEV_GPU_UTIL", 71),
            ("DCGM_FI_DEV_FB_USED", 5 * 1024),
            ("DCGM_FI_DEV_FB_FREE", 135 * 1024),
        )
    ]


def test_gpu_manager_has_each_card_and_the_total_in_mib() -> None:
    two = tenant(cards=[part(0, utilization=10.0), part(1, utilization=20.0)])
    found = {
        (name, *(said[label] for label in ("pod_name", "namespace", "node", "container_name")),
         next(value for label, value in said.items() if "gpu" in label)): value
        for name, said, value in read(snapshot(two), "gpu-manager")
    }  # fmt: skip
    who = ("train-0", "team", "node-1", "main")
    assert found == {
        ("container_gpu_utilization", *who, "gpu0"): 10,
        ("container_gpu_utilization", *who, "gpu1"): 20,
        ("container_gpu_utilization", *who, "total"): 30,
        ("container_gpu_memory_total", *who, "gpu0"): 3 * 1024,
        ("container_gpu_memory_total", *who, "gpu1"): 3 * 1024,
        ("container_gpu_memory_total", *who, "total"): 6 * 1024,
        ("container_request_gpu_memory", *who, "total"): 8 * 1024,
    }


def test_unknown_values_are_left_out_and_the_later_of_two_counts() -> None:
    silent = snapshot(
        tenant(cards=[part(utilization=None)]), cards=[card(used_bytes=None, utilization=None)]
    )
    names = {name for name, _, _ in read(silent, *COMPAT)}
    assert "hami_vgpu_memory_used_bytes" in names
    assert not names & {"hami_container_device_utilization_ratio", "container_gpu_utilization"}
    assert not [name for name in names if name.startswith(("DCGM", "hami_host"))]
    twice = snapshot(
        tenant(id="b", created=2.0, cards=[part(used_bytes=2)]),
        tenant(id="a", created=1.0, cards=[part(used_bytes=1)]),
        tenant("docker-s", id="c"),  # of no pod
    )
    used = [
        value for name, _, value in read(twice, "hami") if name == "hami_vgpu_memory_used_bytes"
    ]
    assert used == [2]


@pytest.mark.parametrize("asked", ["nvidia", "hami,", "HAMI", ""])
def test_a_name_that_there_is_none_of_is_a_usage_error(asked: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpushare.exporter", f"--compat={asked}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Use, for example, --compat=hami,dcgm" in done.stderr
