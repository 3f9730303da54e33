# SPDX-License-Identifier: Apache-2.0
"""Checks this machine as a node of a Kubernetes cluster, and what the cluster knows of it.

Source of the versions: Kubernetes enhancements 4381 (dynamic resource allocation, 1.34), 5075
(consumable capacity: on by default from 1.36) and 4009; containerd docs/cri/config.md (enable_cdi).
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from gpushare.checks import Check
from gpushare.errors import UserError
from gpushare.host import cgroups
from gpushare.kubernetes.api.labels import NODES, settings_of
from gpushare.kubernetes.api.server import ApiForbidden, ApiNotFound, ApiServer, Object, path_of
from gpushare.kubernetes.api.slices import SLICES
from gpushare.protocol.kubernetes import DRIVER, MODE_LABEL, RESOURCE
from gpushare.quota.node_settings import NodeSetting

KUBELET: Final = Path("/var/lib/kubelet")
RUNTIME_CLASSES: Final = "/apis/node.k8s.io/v1/runtimeclasses"
HANDLER: Final = "gpushare"
SKEW_SECONDS: Final = 30.0
#: The first line of gpushare.yaml on the nodes of the chart.
CHART_MARK: Final = "# Written by gpushare's chart, which replaces what you change here."
_SHARES_GATE: Final = "DRAConsumableCapacity"
_ANSWER_SECONDS: Final = 10.0
_PLUGIN: Final = "plugin"
_DRA: Final = "dra"
_RELABEL: Final = "correct or remove it: kubectl label node"

Version = tuple[int, int]


def program_output(*words: str) -> str:
    """Return what a program prints, empty if it is missing or does not end in time."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


@dataclass(frozen=True)
class NodeFacts:
    """This machine as a node; `run` returns a program's output, empty if it fails."""

    mode: str
    folder: Path = KUBELET
    mountinfo: Callable[[], str] = cgroups.mountinfo
    run: Callable[..., str] = program_output
    settings: Mapping[str, NodeSetting] | None = None  # by labels; None: gpushared takes none
    by_chart: bool = False  # gpushare-node runs in a pod of gpushare's chart

    @property
    def start(self) -> str:
        """What to do if gpushare-node has not done its part."""
        if self.by_chart:
            pods = "-n gpushare-system -l app.kubernetes.io/name=gpushare --all-containers"
            return f"see its pod on this node: kubectl logs {pods}"
        return "systemctl start gpushare-node; its log: journalctl -u gpushare-node"

    @property
    def plugin(self) -> str:
        """How to use the mode that has no requirements."""
        return "set " + (
            "mode=plugin in the chart" if self.by_chart else "kubernetes: {mode: plugin}"
        )

    @property
    def apply(self) -> str:
        """How to create the objects of the cluster."""
        if self.by_chart:
            return f"install the chart, or configs/kubernetes, with the mode {self.mode}"
        return f"kubectl apply -k configs/kubernetes/{self.mode}"

    def configuration(self) -> Mapping[str, Any] | None:
        """Return the kubelet's KubeletConfiguration; None if it cannot be read, as in a pod."""
        try:
            loaded = yaml.safe_load((self.folder / "config.yaml").read_bytes())
        except (OSError, yaml.YAMLError):
            return None
        return loaded if isinstance(loaded, dict) else {}


def is_of_chart(configuration: Path) -> bool:
    """Whether the chart has installed this node: gpushare.yaml begins with its mark."""
    try:
        with configuration.open(encoding="utf-8", errors="replace") as file:
            return file.readline().rstrip("\n") == CHART_MARK
    except OSError:
        return False


def check_node(facts: NodeFacts, node: Object | None) -> Iterator[Check]:
    """Check the kubelet and containerd; `node` is the Node object, None if it cannot be read."""
    information = ((node or {}).get("status") or {}).get("nodeInfo") or {}
    kubelet = _version(information.get("kubeletVersion") or facts.run("kubelet", "--version"))
    yield from _kubelet(facts, kubelet)
    runtime = information.get("containerRuntimeVersion") or facts.run("containerd", "--version")
    yield from _containerd(facts, runtime)
    yield _cgroups(facts, kubelet)
    yield from _sockets(facts)


def check_cluster(api: ApiServer, name: str, facts: NodeFacts) -> Iterator[Check]:
    """Check what the cluster has of the node `name`, and then the node itself."""
    try:
        clock, version = api.clock(), str(api.get("/version").get("gitVersion"))
    except UserError as error:
        yield Check("fail", f"API server: {error}", "see docs/how-to/kubernetes-helm.md")
        yield from check_node(facts, None)
        return
    yield Check("ok", f"API server {version}, {api.credentials.server}")
    yield _clock(clock)
    node = None
    try:
        node = api.get(path_of(NODES, name))
    except ApiNotFound:
        yield Check("fail", f"node {name}: not in the cluster", "name it: --node NAME")
    except UserError as error:
        yield _unread("node", error)
    else:
        yield _label(node, facts)
        yield from _settings(node, facts)
    yield from _runtime_classes(api, facts)
    if facts.mode == _DRA:
        yield from _slices(api, name, facts)
    elif facts.mode == _PLUGIN and node is not None:
        yield _resource(node, facts)
    yield from check_node(facts, node)


def _clock(clock: float | None) -> Check:
    if clock is None:
        return Check("warn", "clock: the API server does not report its own")
    apart = abs(clock - time.time())
    if apart > SKEW_SECONDS:
        text = f"clock: {apart:.0f} s from that of the API server: tokens and events are wrong"
        return Check("fail", text, "systemctl restart systemd-timesyncd, or see chronyc tracking")
    return Check("ok", "clock: as that of the API server")


def _label(node: Object, facts: NodeFacts) -> Check:
    mode = facts.mode
    label = (node["metadata"].get("labels") or {}).get(MODE_LABEL)
    if label == mode:
        return Check("ok", f"label {MODE_LABEL}={mode}: pods of this mode can be placed here")
    text = f"label {MODE_LABEL} is {label or 'missing'}, the node's mode is {mode}"
    return Check("fail", f"{text}: pods are not placed here", facts.start)


def _settings(node: Object, facts: NodeFacts) -> Iterator[Check]:
    """Check the labels that set something on this node."""
    current = facts.settings
    if current is None:
        return
    wanted = settings_of(node)
    for problem in wanted.problems:
        yield Check("warn", problem, _RELABEL)
    for key, setting in wanted.settings.items():
        text = f"{key}: {setting['value']}, by the {setting['source']}"
        if current.get(key) == setting:
            yield Check("ok", text)
        else:
            yield Check("warn", f"{text}: not in effect", f"kubectl describe node; {facts.start}")


def _runtime_classes(api: ApiServer, facts: NodeFacts) -> Iterator[Check]:
    mode = facts.mode
    try:
        classes = [
            body for body in api.all_of(RUNTIME_CLASSES)[0] if body.get("handler") == HANDLER
        ]
    except UserError as error:
        yield _unread("RuntimeClass", error)
        return
    for body in classes:
        selector = (body.get("scheduling") or {}).get("nodeSelector") or {}
        if selector.get(MODE_LABEL) == mode:
            yield Check("ok", f"RuntimeClass {body['metadata']['name']}: for nodes of mode {mode}")
            return
    text = f"RuntimeClass: none has handler {HANDLER} and nodeSelector {MODE_LABEL}: {mode}"
    yield Check("warn", text, facts.apply)


def _slices(api: ApiServer, name: str, facts: NodeFacts) -> Iterator[Check]:
    query = {"fieldSelector": f"spec.driver={DRIVER},spec.nodeName={name}"}
    try:
        slices = api.all_of(SLICES, query)[0]
    except ApiNotFound:
        fix = f"upgrade to Kubernetes 1.34, or {facts.plugin}"
        yield Check("fail", "the cluster has no resource.k8s.io/v1", fix)
        return
    except UserError as error:
        yield _unread("ResourceSlices", error)
        return
    devices = [device for published in slices for device in published["spec"].get("devices") or []]
    if not devices:
        yield Check("fail", f"ResourceSlices of {DRIVER}: none on this node", facts.start)
        return
    tainted = sum(bool(device.get("taints")) for device in devices)
    rest = f", of them {tainted} with a taint" if tainted else ""
    yield Check("ok", f"ResourceSlices of {DRIVER}: {len(devices)} cards{rest}")
    if not all(device.get("allowMultipleAllocations") for device in devices):
        text = "ResourceSlices: the cluster does not let claims share a card"
        yield Check("fail", text, f"set the feature gate {_SHARES_GATE}, or upgrade to 1.36")


def _resource(node: Object, facts: NodeFacts) -> Check:
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    ours = {name: amount for name, amount in allocatable.items() if name.startswith("gpushare.io/")}
    if not ours:
        return Check("fail", f"{RESOURCE}: the node has none (device plugin)", facts.start)
    return Check("ok", "allocatable: " + ", ".join(f"{key} {ours[key]}" for key in sorted(ours)))


def _kubelet(facts: NodeFacts, version: Version | None) -> Iterator[Check]:
    if version is None:
        yield Check(
            "warn", "kubelet: version not known", "run this on the node, or name it: --node"
        )
        return
    text = f"kubelet {version[0]}.{version[1]}"
    if facts.mode != _DRA or version >= (1, 36):
        yield Check("ok", text)
    elif version < (1, 34):
        fix = f"upgrade it to 1.34 or newer, or {facts.plugin}"
        yield Check("fail", f"{text}: without dynamic resource allocation (v1)", fix)
    elif (configuration := facts.configuration()) is None:
        yield Check("warn", f"{text}: whether the feature gate {_SHARES_GATE} is on is not known")
    elif (configuration.get("featureGates") or {}).get(_SHARES_GATE) is True:
        yield Check("ok", f"{text}, with the feature gate {_SHARES_GATE}")
    else:
        fix = f"set featureGates: {{{_SHARES_GATE}: true}} in {facts.folder}/config.yaml, and on "
        fix += "the API server and the scheduler"
        yield Check("fail", f"{text}: the feature gate {_SHARES_GATE} is off", fix)


def _containerd(facts: NodeFacts, text: str) -> Iterator[Check]:
    version = _version(text) if "containerd" in text else None
    if version is None:
        return  # CRI-O has CDI enabled, and the engines' checks name what is missing
    name = f"containerd {version[0]}.{version[1]}"
    if facts.mode != _DRA:
        yield Check("ok", name)
    elif version < (1, 7):
        fix = f"upgrade it to 1.7 or newer, or {facts.plugin}"
        yield Check("fail", f"{name}: ignores CDI, by which a claim reaches a container", fix)
    else:
        dump = facts.run("containerd", "config", "dump")
        enabled = re.search(r"^\s*enable_cdi\s*=\s*(true|false)", dump, re.MULTILINE)
        if not dump and version < (2, 0):
            yield Check("warn", f"{name}: whether CDI is on is not known")
        elif (enabled is None and version < (2, 0)) or (enabled and enabled[1] == "false"):
            fix = "set enable_cdi = true in containerd's CRI plugin, and restart it"
            yield Check("fail", f"{name}: CDI is off", fix)
        else:
            yield Check("ok", f"{name}, with CDI")


def _cgroups(facts: NodeFacts, kubelet: Version | None) -> Check:
    layout = cgroups.layout(facts.mountinfo())
    if layout == "v2":
        return Check("ok", "cgroup v2, as the kubelet wants it")
    fix = "boot with systemd.unified_cgroup_hierarchy=1"
    configuration = facts.configuration()
    if kubelet is not None and kubelet >= (1, 35) and configuration is not None:
        if configuration.get("failCgroupV1") is False:
            return Check("warn", f"cgroup {layout}: accepted by failCgroupV1: false", fix)
        return Check("fail", f"cgroup {layout}: refused by kubelets from 1.35 on", fix)
    return Check("warn", f"cgroup {layout}: refused by kubelets from 1.35 on", fix)


def _sockets(facts: NodeFacts) -> Iterator[Check]:
    """Check the sockets by which the kubelet reaches gpushare-node."""
    wanted = {
        _PLUGIN: ("device-plugins/kubelet.sock", "device-plugins/gpushare*.sock"),
        _DRA: (f"plugins_registry/*{DRIVER}*.sock", f"plugins/{DRIVER}/*.sock"),
    }
    for pattern in wanted.get(facts.mode, ()):
        try:
            sockets = [path for path in facts.folder.glob(pattern) if path.is_socket()]
        except PermissionError:
            yield Check("warn", f"{facts.folder}/{pattern}: not readable", "run it as root")
            continue
        if sockets:
            yield Check("ok", f"socket {sockets[0]}")
        else:
            fix = "start the kubelet" if pattern.endswith("kubelet.sock") else facts.start
            yield Check("fail", f"no socket {facts.folder}/{pattern}", fix)


def _unread(what: str, error: UserError) -> Check:
    fix = ""
    if isinstance(error, ApiForbidden):
        fix = "name a kubeconfig that may read it: --kubeconfig FILE"
    return Check("warn", f"{what}: not checked: {error}", fix)


def _version(text: str) -> Version | None:
    match = re.search(r"\bv?([0-9]+)\.([0-9]+)\.[0-9]+", text)
    return (int(match[1]), int(match[2])) if match else None
