# SPDX-License-Identifier: Apache-2.0
"""A system's settings in its ConfigMaps and command lines, and what they are in gpushare.yaml.

Each is converted to a value of the chart's `configuration`, or has the reason why it cannot be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

from gpushare.manifest.migration.inventory import ClusterFacts, FoundObject, Inventory, NodeKey
from gpushare.quota.dialects import DIALECTS, KeyLocation
from gpushare.quota.dialects.units import Unit
from gpushare.quota.errors import BadValue
from gpushare.quota.node_settings import PLACEMENT, POLICY
from gpushare.text_position import UnreadableText
from gpushare.yaml_nodes import YamlNode, fields, items, parse, scalar_text, value_at

#: A key of gpushare.yaml, dotted, and its value.
Converted: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True)
class FoundSetting:
    """A setting: `values` are keys of gpushare.yaml, and `why` says what they cannot.

    `node` is the node to which it applies, empty for all.
    """

    where: str
    key: str
    value: str
    values: Mapping[str, Any]
    why: str = ""
    node: str = ""


@dataclass(frozen=True)
class SettingRule:
    """How a setting is read. `read` returns None if it is the default, which changes nothing."""

    read: Callable[[str], tuple[Converted, str] | None]


def _says(why: str, *, unless: tuple[str, ...] = ()) -> SettingRule:
    """A setting without an equivalent, unless it has a value that changes nothing."""
    return SettingRule(lambda text: None if text in unless else ({}, why))


def _number(key: str, low: int, high: int, why: str = "", *, none: str = "0") -> SettingRule:
    """A number that is the same in gpushare."""

    def read(text: str) -> tuple[Converted, str] | None:
        if text == none:
            return None
        if not text.isdecimal():
            return {}, f"not a whole number; {key} has {low} to {high}"
        value = min(max(int(text), low), high)
        return {key: value}, why if value == int(text) else f"{key} has at most {high}"

    return SettingRule(read)


def _scaling(what: str, more: str) -> SettingRule:
    """A factor by which the device plugin multiplies what a card has."""

    def read(text: str) -> tuple[Converted, str] | None:
        try:
            factor = float(text)
        except ValueError:
            return {}, "not a number"
        if factor == 1:
            return None
        if factor > 1:
            return {}, more
        return (
            {},
            f"set max_per_request, or system_reserved, to keep a part of a card's {what} free",
        )

    return SettingRule(read)


def _memory(text: str) -> tuple[Converted, str] | None:
    if text == "0":
        return None
    if not text.isdecimal():
        return {}, "not a number of MiB"
    found = {"defaults.memory": f"{text}MiB", "defaults.mode": "shared"}
    return found, "a container that requests cards without memory gets this share"


def _by_table(dialect: str, where: KeyLocation, name: str, key: str) -> SettingRule:
    """A setting with the values of a key of pods or nodes."""
    (row,) = (one for one in DIALECTS[dialect].rows if (one.name, one.where) == (name, where))

    return SettingRule(partial(_read, row.unit, key, row.instead))


def _read(unit: Unit, key: str, instead: str, text: str) -> tuple[Converted, str] | None:
    try:
        amount = unit.read(text)
    except BadValue as bad:
        return {}, str(bad)
    return ({}, instead or "no equivalent") if amount is None else ({key: str(amount)}, "")


def _core_limit(text: str) -> tuple[Converted, str] | None:
    if text.casefold() not in {"true", "1"}:
        return None
    return {"defaults.policy": "best-effort"}, "compute is shared without limits"


_OVERCOMMIT: Final = (
    "gpushare does not overcommit a card's memory. A container can use unallocated memory above "
    "its quota with gpushare.io/memory-limit"
)
_SLICES: Final = _number("max_tenants", 1, 256, none="")
_RENAMED: Final = "gpushare knows this resource by its usual name only: rename it in manifests"

#: By the name of the resource in HAMi's device-config.yaml.
_RESOURCES: Final = {
    "resourceCountName": "nvidia.com/gpu",
    "resourceMemoryName": "nvidia.com/gpumem",
    "resourceMemoryPercentageName": "nvidia.com/gpumem-percentage",
    "resourceCoreName": "nvidia.com/gpucores",
    "resourcePriorityName": "nvidia.com/priority",
}
HAMI_NVIDIA: Final[Mapping[str, SettingRule]] = {
    "deviceMemoryScaling": _scaling("memory", _OVERCOMMIT),
    "deviceCoreScaling": _scaling(
        "compute",
        "gpushare does not reserve more than 100 percent of a card. Use the policy burst-share or "
        "best-effort, which shares idle compute",
    ),
    "deviceSplitCount": _SLICES,
    "defaultMemory": SettingRule(_memory),
    "defaultCores": _number("defaults.cores", 1, 100),
    "defaultGPUNum": _says("a request without a number of cards is for one", unless=("1",)),
    "memoryFactor": _says(
        "one nvidia.com/gpumem is this number of MiB, and to gpushare 1 MiB: multiply the value in "
        "each manifest",
        unless=("1",),
    ),
    "gpuCorePolicy": _by_table("hami", "env", "GPU_CORE_UTILIZATION_POLICY", "defaults.policy"),
    "preConfiguredDeviceMemory": _says("gpushare reads memory from the driver", unless=("0",)),
    "enableNumaTopology": _says(
        "not needed: gpushare-node reports the NUMA node of each card", unless=("false",)
    ),
    "overwriteEnv": _says(
        "not needed: NVIDIA_VISIBLE_DEVICES alone requests no GPU", unless=("false",)
    ),
    "libCudaLogLevel": _says("GPUSHARE_LOG in the environment of a container", unless=("1",)),
    "runtimeClassName": _says("the RuntimeClass of gpushare", unless=("",)),
    **{
        name: _says(_RENAMED, unless=(usual, "nvidia.com/gpualloc"))
        for name, usual in _RESOURCES.items()
    },
}
HAMI_NODE: Final[Mapping[str, SettingRule]] = {
    "devicememoryscaling": HAMI_NVIDIA["deviceMemoryScaling"],
    "devicecorescaling": HAMI_NVIDIA["deviceCoreScaling"],
    "devicesplitcount": _SLICES,
    "operatingmode": _says(
        "MIG instances and MPS daemons stay as they are: gpushare shares the instances (gpushare "
        "ls), and starts MPS daemons itself for cards with backend: mps",
        unless=("hami-core",),
    ),
    "migstrategy": _says("gpushare ls shows MIG instances as cards", unless=("none",)),
    "preconfigureddevicememory": HAMI_NVIDIA["preConfiguredDeviceMemory"],
    "enablenumatopology": HAMI_NVIDIA["enableNumaTopology"],
    "enablegetpreferredallocation": _says(
        "not needed: gpushare-node always prefers a card", unless=("false",)
    ),
    "filterdevices.uuid": _says("gpushare card cordon CARD on the node"),
    "filterdevices.index": _says("gpushare card cordon CARD on the node"),
}
FLAGS: Final[Mapping[str, Mapping[str, SettingRule]]] = {
    "hami": {
        "disable-core-limit": SettingRule(_core_limit),
        "device-memory-scaling": HAMI_NVIDIA["deviceMemoryScaling"],
        "device-cores-scaling": HAMI_NVIDIA["deviceCoreScaling"],
        "device-split-count": _SLICES,
        "gpu-scheduler-policy": _by_table(
            "hami", "annotation", "hami.io/gpu-scheduler-policy", "defaults.placement"
        ),
        "node-scheduler-policy": _says(
            "the cluster's scheduler: scoringStrategy MostAllocated packs, LeastAllocated spreads"
        ),
        "mig-strategy": HAMI_NODE["migstrategy"],
    },
    "gpu-manager": {
        "share-mode": _says("cards.NAME.allowed_mode, of which the default is any"),
        "node-labels": _says("kubectl label node, if something else selects these labels"),
        "sample-period": SettingRule(
            lambda text: (
                ({"timing.sample_interval_seconds": float(text)}, "")
                if text.replace(".", "", 1).isdecimal() and float(text)
                else ({}, "not a number of seconds")
            )
        ),
        "query-port": _says("gpushare-exporter has the metrics, on a port of its own"),
        "query-addr": _says("gpushare-exporter has the metrics, at an address of its own"),
        "container-runtime": _says("engine.name of the chart: containerd or crio"),
        "container-runtime-endpoint": _says("gpushare setup finds the engine's socket"),
        "allocation-check-period": _says("timing.reconcile_interval_seconds, default 10"),
        "device-plugin-path": _says("kubeletDir of the chart, if it is not /var/lib/kubelet"),
        "hostname-override": _says("not needed: gpushare-node is told its node"),
        "volume-config": _says("gpushare finds the driver's files itself"),
        "extra-config": _says("no equivalent"),
        "virtual-manager-path": _says("not needed"),
        "checkpoint-path": _says("not needed: state_dir has gpushare's own state"),
        "kubeconfig": _says("not needed: the service account of the chart"),
        "driver": _says("not needed", unless=("nvidia",)),
    },
    "cgpu": {
        "memory-unit": _says(
            "one aliyun.com/gpu-mem is 1 GiB to gpushare: divide the values in manifests by 1024",
            unless=("GiB",),
        ),
        "mps": _says(
            "cards.NAME.backend: mps, for cards on which shares use MPS", unless=("false",)
        ),
        "mps-pipe": _says("gpushare starts the MPS daemons of cards with backend: mps"),
    },
}
#: Settings of node labels that become defaults of all nodes. The labels themselves stay in force.
_DEFAULTS: Final = frozenset({POLICY, PLACEMENT})


def find_settings(inventory: Inventory, cluster: ClusterFacts) -> list[FoundSetting]:
    """Return the settings of a system that are not its defaults, in their order.

    HAMi's chart has an example of a node's settings, so those of unknown nodes are left out.
    """
    found: list[FoundSetting] = []
    for one in inventory.objects:
        is_map = one.document.kind == "ConfigMap"
        found += _of_config_map(one) if is_map else _of_arguments(inventory, one)
    found += _of_labels(inventory.node_keys)
    return [
        _for_cards(one, inventory.node_keys) if one.node else one
        for one in found
        if not one.node or one.node in cluster.nodes
    ]


#: UUIDs in HAMi's annotation of a node, in each of its formats.
_UUID: Final = re.compile(r"GPU-[0-9a-fA-F-]{8,64}")
_REGISTER: Final = "hami.io/node-nvidia-register"


def _for_cards(one: FoundSetting, node_keys: list[NodeKey]) -> FoundSetting:
    """Return a setting of one node: of its cards, if their UUIDs are known.

    The chart's configuration is the same on all nodes.
    """
    texts = [key.value for key in node_keys if (key.node, key.key) == (one.node, _REGISTER)]
    uuids = list(dict.fromkeys(_UUID.findall(" ".join(texts))))
    if set(one.values) == {"max_tenants"} and uuids:
        most = one.values["max_tenants"]
        return replace(one, values={f"cards.{uuid}.max_tenants": most for uuid in uuids})
    if not one.values:
        return one
    own = ", ".join(f"{key}: {value}" for key, value in one.values.items())
    why = f"{own} on this node only; the chart's configuration is for all nodes"
    if one.where.startswith("Node "):
        why = f"{own} on this node, where the label stays in force"
    return replace(one, values={}, why=why)


def configuration(settings: list[FoundSetting]) -> dict[str, Any]:
    """Return gpushare.yaml with the converted values; of two values for one key the first."""
    made: dict[str, Any] = {}
    for setting in settings:
        for key, value in setting.values.items():
            *sections, name = key.split(".")
            section = made
            for part in sections:
                section = section.setdefault(part, {})
            section.setdefault(name, value)
    return made


def _converted(
    where: str, key: str, text: str, rule: SettingRule, node: str = ""
) -> list[FoundSetting]:
    read = rule.read(text)
    return [] if read is None else [FoundSetting(where, key, text, *read, node)]


def _of_config_map(one: FoundObject) -> Iterator[FoundSetting]:
    for name, value in one.document.data.items():
        try:
            roots = parse(value.text).roots
        except UnreadableText:
            continue  # a text for something else
        if not roots:
            continue
        where = f"{one}, {name}"
        for key, text in _scalars(value_at(roots[0], "nvidia")):
            if key in HAMI_NVIDIA:
                yield from _converted(where, f"nvidia.{key}", text, HAMI_NVIDIA[key])
        for node in items(value_at(roots[0], "nodeconfig")):
            named = scalar_text(value_at(node, "name")) or ""
            for key, text in _scalars(node):
                if key in HAMI_NODE:
                    shown = f"nodeconfig[{named}].{key}"
                    yield from _converted(where, shown, text, HAMI_NODE[key], named)


def _scalars(node: YamlNode | None, above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the texts of a mapping by dotted key; of a list its items, joined."""
    for name, entry in fields(node).items():
        key = f"{above}{name}"
        listed = [scalar_text(item) for item in items(entry.value)]
        text = ",".join(filter(None, listed)) if listed else scalar_text(entry.value)
        if text is not None and (text or entry.value.kind == "scalar"):
            yield key, text
        else:
            yield from _scalars(entry.value, f"{key}.")


def _of_arguments(inventory: Inventory, one: FoundObject) -> Iterator[FoundSetting]:
    rules = FLAGS.get(inventory.system.name, {})
    for container in one.document.containers:
        words = list(container.arguments)
        words += container.env["EXTRA_FLAGS"].text.split() if "EXTRA_FLAGS" in container.env else []
        for word in words:
            flag, equals, text = word.lstrip("-").partition("=")
            if word.startswith("-") and flag in rules:
                value = text if equals else "true"
                where = f"{one}, container {container.name}"
                yield from _converted(where, f"--{flag}", value, rules[flag])


def _of_labels(node_keys: list[NodeKey]) -> Iterator[FoundSetting]:
    """Yield the labels that are settings; what all nodes have alike is one setting, a default."""
    by_label: dict[str, list[NodeKey]] = {}
    for one in node_keys:
        if one.where == "node label" and one.word.row.setting in _DEFAULTS:
            by_label.setdefault(one.key, []).append(one)
    for key, labelled in by_label.items():
        row, texts = labelled[0].word.row, {one.value for one in labelled}
        rule = SettingRule(partial(_read, row.unit, row.setting, row.instead))
        if len(texts) == 1:
            yield from _converted("label of all nodes that have it", key, texts.pop(), rule)
        else:
            for one in labelled:
                yield from _converted(f"Node {one.node}", key, one.value, rule, one.node)
