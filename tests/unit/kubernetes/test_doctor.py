# SPDX-License-Identifier: Apache-2.0
"""`gpushare doctor --k8s`: each finding with its fix."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.checks import Check
from gpushare.checks.kubernetes import (
    RUNTIME_CLASSES,
    NodeFacts,
    check_cluster,
    check_node,
    is_of_chart,
)
from gpushare.kubernetes.api.labels import settings_of
from gpushare.kubernetes.api.server import ApiServer
from gpushare.kubernetes.api.slices import SLICES, SlicePublisher
from gpushare.protocol.kubernetes import DRIVER
from gpushare.quota.node_settings import OWN, NodeSetting
from tests.stack.api_server import StandInApiServer
from tests.unit.kubernetes.made import card
from tests.unit.kubernetes.made import node as cards_of
from tools.check.command import ROOT

NODE = "/api/v1/nodes/n"
V2 = "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = "31 1 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


@dataclass
class Machine:
    """A node as its files and programs describe it."""

    folder: Path
    mode: str = "dra"
    kubelet: str = "Kubernetes v1.36.2"
    containerd: str = "containerd github.com/containerd/containerd/v2 v2.1.4 abc"
    dump: str = ""
    cgroups: str = V2
    settings: dict[str, NodeSetting] | None = None
    by_chart: bool = False

    @property
    def facts(self) -> NodeFacts:
        return NodeFacts(
            self.mode, self.folder, lambda: self.cgroups, self.run, self.settings, self.by_chart
        )

    def run(self, *words: str) -> str:
        if words == ("kubelet", "--version"):
            return self.kubelet
        return self.dump if words[1:] == ("config", "dump") else self.containerd

    def listen(self, *names: str) -> None:
        for name in names:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            os.mknod(path, stat.S_IFSOCK | 0o600)

    def configure(self, **settings: Any) -> None:
        (self.folder / "config.yaml").write_text(yaml.safe_dump(settings))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def lines(checks: Iterator[Check]) -> list[str]:
    return [f"{check.level} {check.text}; {check.fix}" for check in checks]


def found(machine: Machine, word: str) -> str:
    """Return the one finding about `word`."""
    (line,) = (one for one in lines(check_node(machine.facts, None)) if word in one)
    return line


def test_a_node_that_is_ready_has_no_finding(machine: Machine) -> None:
    machine.listen("plugins_registry/gpu.gpushare.io-reg.sock", "plugins/gpu.gpushare.io/dra.sock")
    checks = list(check_node(machine.facts, None))
    assert {check.level for check in checks} == {"ok"}
    assert len(checks) == 5


CONTAINERD_1 = "containerd containerd.io 1.7.24 88bf"
CONTAINERD_2 = "containerd github.com/containerd v2.1.4"


@pytest.mark.parametrize(
    ("facts", "word", "level", "text"),
    [
        ({"kubelet": "Kubernetes v1.36.0"}, "kubelet 1.", "ok", "kubelet 1.36"),
        ({"kubelet": "Kubernetes v1.34.9"}, "kubelet 1.", "warn", "gate DRAConsumableCapacity is"),
        ({"kubelet": "Kubernetes v1.33.1"}, "kubelet 1.", "fail", "set kubernetes: {mode: plugin}"),
        ({"kubelet": "Kubernetes v1.30.0", "mode": "plugin"}, "kubelet 1.", "ok", "kubelet 1.30"),
        ({"kubelet": "Kubernetes "}, "kubelet: ", "warn", "version not known"),
        ({"containerd": "containerd v1.6.20"}, "containerd ", "fail", "ignores CDI"),
        ({"containerd": CONTAINERD_1}, "containerd ", "warn", "whether CDI is on is not known"),
        (
            {"containerd": CONTAINERD_1, "dump": "version = 2"},
            "containerd ",
            "fail",
            "set enable_cdi = true",
        ),
        (
            {"containerd": CONTAINERD_1, "dump": "  enable_cdi = true\n"},
            "containerd ",
            "ok",
            "with CDI",
        ),
        ({"containerd": CONTAINERD_2}, "containerd ", "ok", "with CDI"),
        (
            {"containerd": CONTAINERD_2, "dump": "enable_cdi = false"},
            "containerd ",
            "fail",
            "CDI is off",
        ),
    ],
)
def test_the_versions_of_the_kubelet_and_of_containerd(
    machine: Machine, facts: dict[str, str], word: str, level: str, text: str
) -> None:
    line = found(replace(machine, **facts), word)  # type: ignore[arg-type]
    assert line.startswith(level)
    assert text in line


def test_a_feature_gate_of_the_kubelet_and_another_engine(machine: Machine) -> None:
    machine.kubelet, machine.containerd = "Kubernetes v1.34.9", "crio version 1.34.1"
    machine.configure(failSwapOn=False)
    assert found(machine, "kubelet 1.").startswith("fail")
    assert "DRAConsumableCapacity is off; set featureGates" in found(machine, "kubelet 1.")
    machine.configure(featureGates={"DRAConsumableCapacity": True})
    assert found(machine, "kubelet 1.").startswith("ok kubelet 1.34, with the feature gate")
    assert not any("containerd" in line for line in lines(check_node(machine.facts, None)))


def test_the_cgroup_version_and_what_the_kubelet_makes_of_it(machine: Machine) -> None:
    machine.cgroups = V1
    assert found(machine, "cgroup v").startswith("warn")  # a kubelet that runs may accept it
    machine.configure(failSwapOn=False)
    assert found(machine, "cgroup v").startswith("fail cgroup v1: refused by kubelets from 1.35")
    machine.configure(failCgroupV1=False)
    assert found(machine, "cgroup v").startswith("warn cgroup v1: accepted by failCgroupV1: false")
    machine.kubelet = "Kubernetes v1.34.9"
    assert found(machine, "cgroup v").startswith("warn")
    machine.cgroups = V2
    assert found(machine, "cgroup v").startswith("ok")


Asked = Callable[..., dict[str, str]]


@pytest.fixture
def asked(api: ApiServer, cluster: StandInApiServer, machine: Machine) -> Asked:
    """What the cluster's checks find, by the first word of the text."""
    cluster.put(NODE, {"metadata": {"labels": {"gpushare.io/mode": "dra"}}})
    cluster.put(
        f"{RUNTIME_CLASSES}/gpushare-dra",
        {"handler": "gpushare", "scheduling": {"nodeSelector": {"gpushare.io/mode": "dra"}}},
    )

    def ask(name: str = "n") -> dict[str, str]:
        checks = lines(check_cluster(api, name, machine.facts))
        return {line.split()[1].rstrip(":"): line for line in checks}

    return ask


def test_a_cluster_that_is_ready(asked: Asked, api: ApiServer) -> None:
    SlicePublisher(api, "n").write(cards_of(card(0), card(1, is_schedulable=False)))
    lines = asked()
    for word in ("API", "clock", "label", "RuntimeClass", "ResourceSlices"):
        assert lines[word].startswith("ok"), lines[word]
    assert "2 cards, of them 1 with a taint" in lines["ResourceSlices"]


def test_what_is_missing_in_the_cluster_has_a_fix(asked: Asked, cluster: StandInApiServer) -> None:
    cluster.remove(f"{RUNTIME_CLASSES}/gpushare-dra")
    cluster.put(NODE, {"metadata": {"labels": {"gpushare.io/mode": "plugin"}}})
    lines = asked()
    assert "label gpushare.io/mode is plugin, the node's mode is dra" in lines["label"]
    assert "kubectl apply -k configs/kubernetes/dra" in lines["RuntimeClass"]
    assert lines["ResourceSlices"].startswith("fail")
    assert "systemctl start gpushare-node" in lines["ResourceSlices"]
    assert asked("other")["node"].startswith("fail node other: not in the cluster")


def test_on_a_node_of_the_chart_each_fix_is_one_of_the_chart(
    asked: Asked, cluster: StandInApiServer, machine: Machine
) -> None:
    machine.by_chart, machine.kubelet, machine.settings = True, "Kubernetes v1.33.1", {}
    cluster.remove(f"{RUNTIME_CLASSES}/gpushare-dra")
    labels = {f"{OWN}policy": "burst-share", "gpushare.io/mode": "plugin"}
    cluster.put(NODE, {"metadata": {"labels": labels}})
    machine.containerd = "containerd v1.6.20"
    findings = [line for line in asked().values() if not line.startswith("ok")]
    cluster.fault = lambda _method, path: 404 if path == SLICES else None
    findings += [asked()["the"]]
    machine.mode = "plugin"
    findings += [asked()["gpushare.io/memory-gib"]]
    assert len(findings) >= 8
    text = "\n".join(findings)
    assert "kubectl logs -n gpushare-system -l app.kubernetes.io/name=gpushare" in text
    assert "with the mode dra" in text
    assert text.count("set mode=plugin in the chart") == 3
    for other in ("systemctl", "journalctl", "apply -k", "kubernetes: {"):
        assert other not in text


def test_a_node_of_the_chart_is_known_by_its_configuration(tmp_path: Path) -> None:
    mark = re.search(r'(?m)^MARK="(.*)"$', (ROOT / "packaging/image/gpushare-image").read_text())
    assert mark
    file = tmp_path / "gpushare.yaml"
    assert not is_of_chart(file)
    file.write_text(f"max_tenants: 3\n{mark[1]}\n")
    assert not is_of_chart(file)
    file.write_text(f"{mark[1]}\nmax_tenants: 3\n")
    assert is_of_chart(file)


def test_what_the_credentials_may_not_read_is_not_judged(
    asked: Asked, cluster: StandInApiServer
) -> None:
    cluster.fault = lambda _method, path: 403 if "/version" not in path else None
    lines = asked()
    for word in ("node", "RuntimeClass", "ResourceSlices"):
        assert lines[word].startswith("warn"), lines[word]
        assert "name a kubeconfig that may read it: --kubeconfig FILE" in lines[word]


def test_labels_that_set_something_are_compared_with_what_is_in_effect(
    asked: Asked, cluster: StandInApiServer, machine: Machine
) -> None:
    labels = {f"{OWN}policy": "burst-share", f"{OWN}size": "1", "gpushare.io/mode": "dra"}
    node = {"metadata": {"labels": labels}}
    cluster.put(NODE, node)
    machine.settings = {}
    lines = asked()
    assert lines["defaults.policy"].startswith(
        "warn defaults.policy: burst-share, by the node label"
    )
    assert "not in effect" in lines["defaults.policy"]
    assert any("unknown label" in line and "kubectl label" in line for line in lines.values())
    machine.settings = dict(settings_of(node).settings)
    assert asked()["defaults.policy"].startswith("ok")


def test_another_clock_of_the_api_server(
    asked: Asked, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for clock, level in ((None, "warn"), (0.0, "fail")):
        monkeypatch.setattr(api, "clock", lambda clock=clock: clock)
        assert asked()["clock"].startswith(f"{level} clock: ")


def test_a_cluster_that_is_too_old_or_does_not_answer(
    asked: Asked, cluster: StandInApiServer
) -> None:
    device = {"name": "gpu-0"}
    spec = {"driver": DRIVER, "nodeName": "n", "devices": [device]}
    cluster.put(f"{SLICES}/n-0", {"spec": spec})
    assert "upgrade to 1.36" in asked()["ResourceSlices"]
    cluster.fault = lambda _method, path: 404 if path == SLICES else None
    assert "upgrade to Kubernetes 1.34" in asked()["the"]
    cluster.fault = lambda *_: "drop"
    lines = asked()
    assert lines["API"].startswith("fail API server: ")
    assert lines["kubelet"].startswith("ok")


def test_a_resource_of_the_device_plugin(
    asked: Asked, cluster: StandInApiServer, machine: Machine
) -> None:
    machine.mode = "plugin"
    assert asked()["gpushare.io/memory-gib"].startswith("fail")
    cluster.put(NODE, {"status": {"allocatable": {"cpu": "8", "gpushare.io/memory-gib": "139"}}})
    assert asked()["allocatable"].startswith("ok allocatable: gpushare.io/memory-gib 139")
