# SPDX-License-Identifier: Apache-2.0
"""The labels of this node: its cards, how pods request them, and the settings in its labels.

The names after `gpushare.io/` are those of NVIDIA's GPU feature discovery, so that an affinity rule
changes only its prefix. `cuda-major-version` and `cuda-minor-version` are the names that the
manifests of Alauda's kit select by.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from gpushare.client import Client, RequestRefused
from gpushare.kubernetes.api.events import (
    MESSAGE_CHARACTERS,
    NORMAL,
    WARNING,
    EventRecorder,
    KubernetesEvent,
    NodeObject,
)
from gpushare.kubernetes.api.server import ApiServer, Object, path_of
from gpushare.kubernetes.cards import NodeCards
from gpushare.protocol.kubernetes import MODE_LABEL, is_served
from gpushare.quota.dialects import TABLES
from gpushare.quota.dialects.vendor_key import KeyLocation
from gpushare.quota.errors import BadValue, QuotaError
from gpushare.quota.node_settings import (
    NODE_MODE,
    NODE_SETTINGS,
    OWN,
    OWN_LABELS,
    RELEASED,
    NodeSetting,
    read_own_label,
)

NODES: Final = "/api/v1/nodes"
_PREFIX: Final = "gpushare.io/"
#: Every name that this module may write; a node loses those that it does not offer.
NAMES: Final = (
    MODE_LABEL,
    *(
        _PREFIX + name
        for name in (
            "isolation",
            "gpu.count",
            "gpu.product",
            "gpu.memory",
            "gpu.compute.major",
            "gpu.compute.minor",
            "cuda.driver-version.full",
            "cuda.driver-version.major",
            "cuda.driver-version.minor",
            "cuda.driver-version.revision",
            "cuda.runtime-version.full",
            "cuda.runtime-version.major",
            "cuda.runtime-version.minor",
        )
    ),
    "cuda-major-version",
    "cuda-minor-version",
)
_VALUE_CHARACTERS: Final = 63
_MIXED: Final = "mixed"


def label_value(text: str) -> str:
    """Return `text` as a valid label value; empty if nothing of it is left.

    Source: Kubernetes, "Labels and Selectors": 63 characters, letters or digits at both ends, and
    `-`, `_` and `.` between.
    """
    value = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:_VALUE_CHARACTERS]
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9]+$", "", value)


def labels_of(node: NodeCards) -> dict[str, str]:
    """Return the labels of a node; of what its cards differ in, `mixed` or the least.

    `gpu.memory` is in MiB, as GPU feature discovery writes it.
    """
    labels = {MODE_LABEL: node.mode}
    if not node.cards:
        return labels
    capabilities = [card.compute_capability for card in node.cards if card.compute_capability]
    models = {card.model for card in node.cards}
    labels |= {
        _PREFIX + "isolation": node.isolation,
        _PREFIX + "gpu.count": str(len(node.cards)),
        _PREFIX + "gpu.product": models.pop() if len(models) == 1 else _MIXED,
        _PREFIX + "gpu.memory": str(min(card.memory_bytes for card in node.cards) >> 20),
    }
    if capabilities:
        least = min(capabilities)
        labels |= {
            _PREFIX + "gpu.compute.major": str(least[0]),
            _PREFIX + "gpu.compute.minor": str(least[1]),
        }
    parts = ("major", "minor", "revision")
    labels |= _version(_PREFIX + "cuda.driver-version.", node.driver_version, parts)
    labels |= _version(_PREFIX + "cuda.runtime-version.", node.cuda_version, parts[:2])
    cuda = _version("", node.cuda_version, parts[:2])
    labels |= {f"cuda-{part}-version": cuda[part] for part in parts[:2] if part in cuda}
    valid = {name: label_value(value) for name, value in labels.items()}
    return {name: value for name, value in valid.items() if value}


def _version(prefix: str, text: str, parts: tuple[str, ...]) -> dict[str, str]:
    numbers = text.split(".")
    if not all(number.isdecimal() for number in numbers):
        return {}
    # A rule with Gt compares numbers: 05 is 5.
    named = {prefix + part: str(int(number)) for part, number in zip(parts, numbers, strict=False)}
    return {prefix + "full": text, **named}


class NodeLabels:
    """Keeps the labels of the node `name` equal to what the node offers."""

    def __init__(self, api: ApiServer, name: str) -> None:
        self._api = api
        self._path = path_of(NODES, name)
        self._written: dict[str, str] | None = None

    def write(self, node: NodeCards) -> None:
        """Write the labels of `node`, if they differ from those last written; ApiError."""
        wanted = labels_of(node)
        if wanted != self._written:
            self._patch(wanted)
            self._written = wanted

    def verify(self) -> None:
        """Have the next `write` compare with the node itself: something else may change it."""
        current = self.node()["metadata"].get("labels") or {}
        self._written = {name: current[name] for name in NAMES if name in current}

    def node(self) -> Object:
        """Return the Node object; ApiError."""
        return self._api.get(self._path)

    def remove(self) -> None:
        """Remove all labels: the node no longer offers cards; ApiError."""
        self._patch({})
        self._written = {}

    def _patch(self, labels: Mapping[str, str]) -> None:
        """Set `labels`, and remove those of NAMES that are not in it."""
        body: Object = {"metadata": {"labels": {name: labels.get(name) for name in NAMES}}}
        self._api.patch(self._path, body)


# --- the settings of the cards in labels of this node's Node object ---
#
# HAMi has an annotation that cordons cards.
#
# gpushare's own label takes precedence over those of other systems. A label with a bad value, and
# two systems' labels that disagree, change nothing: they are reported as events on the node.

#: The GPU operator's: "true", or why the programs that use the driver have to go. It evicts pods
#: with nvidia.com/gpu, and waits for DaemonSets. Source: GPU operator 26.7, k8s-driver-manager.
OPERATOR_LABEL: Final = "nvidia.com/gpu.deploy.client"
_PAUSED: Final = ("paused-for-driver-upgrade", "paused-for-mig-change")
IN_USE: Final = "GpuDriverInUse"
IGNORED: Final = "GpuLabelIgnored"
CHANGED: Final = "GpuSettingChanged"


#: Labels of other systems whose value `mps` means that the node's cards are shared through MPS.
_OF_MPS: Final = ("ack.node.gpu.schedule",)


class WantedSettings(NamedTuple):
    """The settings in labels, by key, and the problems with them.

    The settings in `kept` are to stay as they are: one of their labels is wrong. `wants_mps` is the
    label that means MPS, "" if none does: no label changes the backend of cards.
    """

    settings: Mapping[str, NodeSetting]
    kept: frozenset[str]
    problems: tuple[str, ...]
    wants_mps: str = ""


class _LabelValue(NamedTuple):
    key: str  # empty: the label is not known
    setting: NodeSetting | None  # None: the value is bad
    is_own: bool
    problem: str = ""


def settings_of(node: Object) -> WantedSettings:
    """Return what the labels and annotations of a Node object set."""
    labels = node["metadata"].get("labels") or {}
    annotations = node["metadata"].get("annotations") or {}
    label_values = [
        *_own(labels),
        *_vendors("node label", labels),
        *_vendors("node annotation", annotations),
    ]
    problems = [value.problem for value in label_values if value.problem]
    settings: dict[str, NodeSetting] = {}
    if labels.get(OPERATOR_LABEL) in _PAUSED:
        source = f"node label {OPERATOR_LABEL}={labels[OPERATOR_LABEL]}"
        settings[RELEASED] = NodeSetting(value="yes", source=source)
    kept = set()
    for key in NODE_SETTINGS:
        candidates = [label for label in label_values if label.key == key]
        first = [candidate for candidate in candidates if candidate.is_own] or candidates
        valid = {
            label.setting["value"]: label.setting for label in first if label.setting is not None
        }
        if any(label.setting is None for label in first):
            kept.add(key)
        elif len(valid) > 1:
            kept.add(key)
            values = " and ".join(
                f"{label['source']} ({label['value']})" for label in valid.values()
            )
            fixes = ["Remove one", *(f"set {own}" for own in OWN_LABELS if key in OWN_LABELS[own])]
            problems.append(f"{key} is not clear: {values} disagree. {', or '.join(fixes)}.")
        elif valid:
            [settings[key]] = valid.values()
    mps = next((name for name in _OF_MPS if labels.get(name) == "mps"), "")
    return WantedSettings(settings, frozenset(kept), tuple(problems), mps)


def _own(labels: Mapping[str, str]) -> Iterator[_LabelValue]:
    for name in sorted(name for name in labels if name.startswith(OWN)):
        try:
            key, value = read_own_label(name, labels[name])
        except QuotaError as error:
            keys = OWN_LABELS.get(name, ())
            yield from (_LabelValue(key, None, is_own=True) for key in keys)
            yield _LabelValue("", None, is_own=True, problem=str(error))
        else:
            setting = NodeSetting(value=value, source=f"node label {name}")
            yield _LabelValue(key, setting, is_own=True)


def _vendors(where: KeyLocation, texts: Mapping[str, str]) -> Iterator[_LabelValue]:
    for word in TABLES.find(where, dict(sorted(texts.items()))):
        key, title = word.row.setting, word.dialect.title
        if not key:
            continue
        try:
            value = NODE_SETTINGS[key].parse(str(word.row.read(word.text)))
        except BadValue as bad:
            error = QuotaError(str(word.source), word.text, bad.rule, bad.fix)
            yield _LabelValue(key, None, is_own=False, problem=f"{title}: {error}")
        else:
            setting = NodeSetting(value=str(value), source=str(word.source))
            yield _LabelValue(key, setting, is_own=False)


class NodeSettings:
    """Keeps gpushared's settings as the labels of the node say; not thread-safe.

    gpushared keeps them itself, so that a new gpushare-node has nothing to remember.
    """

    def __init__(
        self,
        target: Client,
        recorder: EventRecorder,
        chart_mode: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._target = target
        self._recorder = recorder
        self._chart_mode = chart_mode  # "": any
        self._clock = clock
        self._reported: frozenset[str] = frozenset()

    def apply(self, node: Object, status: Mapping[str, Any]) -> None:
        """Set what the labels of `node` say, and report what is wrong with them.

        `status` is gpushared's own, of now. UserError of the daemon or the API server, to be tried
        again.
        """
        if not status["accepts_node_labels"]:
            return
        current: Mapping[str, NodeSetting] = status["node_settings"]
        wanted = self._served(settings_of(node))
        problems = [f"{problem} Nothing was changed." for problem in wanted.problems]
        if wanted.wants_mps and any(row["mode"] != "mps" for row in self._target.cards()):
            problems.append(
                f"node label {wanted.wants_mps}=mps: the cards are shared, and not through MPS: "
                "its containers share faults, so no label selects it. Set backend: mps for the "
                "cards in gpushare.yaml, and gpushare.io/backend: mps in the requests."
            )
        for key in sorted((current.keys() | wanted.settings.keys()) - wanted.kept):
            setting = wanted.settings.get(key)
            if setting == current.get(key):
                continue
            try:
                self._target.set_node_setting(key, setting)
            except RequestRefused as error:
                problems.append(f"{error} Nothing was changed.")
            else:
                self._report(node, NORMAL, CHANGED, _changed(key, setting), f"{self._clock()}")
        told = [(IGNORED, problem) for problem in problems]
        if RELEASED in wanted.settings and status["tenants"]:
            told.append((IN_USE, f"{status['tenants']} containers {_HOLD}"))
        for reason, text in told:
            if text not in self._reported:
                self._report(node, WARNING, reason, text, "")
        self._reported = frozenset(text for _, text in told)

    def _served(self, wanted: WantedSettings) -> WantedSettings:
        """Return `wanted` without a mode that gpushare-node cannot serve: its pod has one mode's.

        gpushare.yaml's mode applies then, also if the label was in effect before.
        """
        setting = wanted.settings.get(NODE_MODE)
        if setting is None or is_served(setting["value"], self._chart_mode):
            return wanted
        problem = (
            f"{setting['source']}={setting['value']}: gpushare-node has the folders and "
            f"permissions of the chart's mode, {self._chart_mode}. Set the mode of the chart, or "
            "remove the label."
        )
        rest = {key: other for key, other in wanted.settings.items() if key != NODE_MODE}
        return wanted._replace(settings=rest, problems=(*wanted.problems, problem))

    def _report(self, node: Object, kind: str, reason: str, message: str, number: str) -> None:
        about = NodeObject(node["metadata"]["name"], node["metadata"]["uid"])
        text = message[:MESSAGE_CHARACTERS]
        self._recorder.record(KubernetesEvent(about, reason, kind, text, self._clock(), number))


_HOLD: Final = (
    "of gpushare use the driver, which cannot be unloaded before they have ended. No operator "
    "knows their requests: run kubectl drain, or gpushare card drain on the node."
)


def _changed(key: str, setting: NodeSetting | None) -> str:
    if key == RELEASED:
        what = "does not hold the driver any more" if setting else "may use the driver again"
        return f"gpushared {what}: {setting['source'] if setting else OPERATOR_LABEL}"
    if setting is None:
        return f"{key} is as gpushare.yaml sets it: no label sets it any more"
    by = f"{key} is {setting['value']}, by the {setting['source']}"
    return f"{by}. It applies to new containers"
