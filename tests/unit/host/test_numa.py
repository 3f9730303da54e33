# SPDX-License-Identifier: Apache-2.0
"""NUMA nodes and cpusets of a machine whose /sys and /proc are folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.host.numa import NO_NODE, Cpuset, Numa

V1 = "32 31 0:29 / {root}/cpuset rw,relatime - cgroup cgroup rw,cpuset\n"
V2 = "32 31 0:29 / {root}/unified rw,relatime - cgroup2 cgroup2 rw\n"


def put(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


@pytest.fixture
def machine(tmp_path: Path) -> Numa:
    sys, proc = tmp_path / "sys", tmp_path / "proc"
    nodes = sys / "devices/system/node"
    for number, cpus in enumerate(("0-7", "8-15", "16-17")):
        put(nodes / f"node{number}" / "cpulist", cpus)
    put(nodes / "has_memory", "0-1")
    put(sys / "bus/pci/devices/0000:18:00.0/numa_node", "1")
    put(sys / "bus/pci/devices/0000:19:00.0/numa_node", "-1")
    put(proc / "self/status", "Name:\tx\nCpus_allowed_list:\t0-9\nMems_allowed_list:\t0-1")
    put(proc / "self/mountinfo", "")
    return Numa(sys, proc)


def mounted(machine: Numa, *lines: str) -> Path:
    root = machine.sys / "fs/cgroup"
    (machine.proc / "self/mountinfo").write_text("".join(lines).format(root=root))
    return root


def test_a_card_s_numa_node_is_the_kernels(machine: Numa) -> None:
    assert machine.node_of("0000:18:00.0") == 1
    assert machine.node_of("0000:19:00.0") == NO_NODE
    assert machine.node_of("0000:1a:00.0") == NO_NODE


def test_several_nodes_are_all_their_cpus(machine: Numa) -> None:
    assert machine.of([0, 1]) == Cpuset(frozenset(range(16)), frozenset({0, 1}))
    # A node of CPUs alone has no memory to be kept to.
    assert machine.of([2]) == Cpuset(frozenset({16, 17}), frozenset())
    assert machine.of([7]) == Cpuset()


def test_without_cpusets_the_process_affinity_counts(machine: Numa) -> None:
    assert machine.allowed("/docker/4f1c") == Cpuset(frozenset(range(10)), frozenset({0, 1}))


def test_the_nearest_cgroup_above_the_container_sets_its_cpus(machine: Numa) -> None:
    root = mounted(machine, V1) / "cpuset"
    put(root / "cpuset.effective_cpus", "0-15")
    put(root / "cpuset.effective_mems", "0-1")
    put(root / "docker/cpuset.effective_cpus", "4-11")
    put(root / "docker/cpuset.effective_mems", "1")
    assert machine.allowed("/docker/4f1c") == Cpuset(frozenset(range(4, 12)), frozenset({1}))
    # A group of it that is not there yet is made below the one that is.
    assert machine.allowed("/docker/new/4f1c").cpus == frozenset(range(4, 12))
    assert machine.allowed("/other/4f1c").cpus == frozenset(range(16))
    assert machine.allowed("").cpus == frozenset(range(16))
    assert machine.allowed("/../../docker/4f1c").cpus == frozenset(range(4, 12))


def test_a_slice_of_systemd_is_below_those_of_its_name(machine: Numa) -> None:
    root = mounted(machine, V2) / "unified"
    put(root / "cpuset.cpus.effective", "0-15")
    put(root / "cpuset.mems.effective", "0-1")
    slice_ = root / "kubepods.slice/kubepods-burstable.slice"
    put(slice_ / "cpuset.cpus.effective", "2-3")
    put(slice_ / "cpuset.mems.effective", "0")
    for name in ("kubepods-burstable.slice", "kubepods-burstable-pod12.slice"):
        found = machine.allowed(f"{name}:cri-containerd:4f1c")
        assert found == Cpuset(frozenset({2, 3}), frozenset({0})), name
    assert machine.allowed("system.slice:docker:4f1c").cpus == frozenset(range(16))


def test_a_hierarchy_of_which_a_part_is_mounted_says_nothing(machine: Numa) -> None:
    part = V1.replace("0:29 / ", "0:29 /docker/77 ")
    root = mounted(machine, part) / "cpuset"
    put(root / "cpuset.effective_cpus", "0")
    assert machine.allowed("/x").cpus == frozenset(range(10))
