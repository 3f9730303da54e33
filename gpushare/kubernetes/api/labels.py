# SPDX-License-Identifier: Apache-2.0
"""The labels of this node: what its cards are, and how pods request them.

The names after `gpushare.io/` are those of NVIDIA's GPU feature discovery, so that an affinity rule
changes only its prefix. `cuda-major-version` and `cuda-minor-version` are the names that the
manifests of Alauda's kit select by.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gpushare.kubernetes.api.server import ApiServer, Object, path_of
from gpushare.kubernetes.cards import NodeCards
from gpushare.protocol.kubernetes import MODE_LABEL

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
    made = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:_VALUE_CHARACTERS]
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9]+$", "", made)


def labels_of(node: NodeCards) -> dict[str, str]:
    """Return the labels of a node; of what its cards differ in, `mixed` or the least.

    `gpu.memory` is in MiB, as GPU feature discovery writes it.
    """
    found = {MODE_LABEL: node.mode}
    if not node.cards:
        return found
    capabilities = [card.compute_capability for card in node.cards if card.compute_capability]
    models = {card.model for card in node.cards}
    found |= {
        _PREFIX + "isolation": node.isolation,
        _PREFIX + "gpu.count": str(len(node.cards)),
        _PREFIX + "gpu.product": models.pop() if len(models) == 1 else _MIXED,
        _PREFIX + "gpu.memory": str(min(card.memory_bytes for card in node.cards) >> 20),
    }
    if capabilities:
        least = min(capabilities)
        found |= {
            _PREFIX + "gpu.compute.major": str(least[0]),
            _PREFIX + "gpu.compute.minor": str(least[1]),
        }
    parts = ("major", "minor", "revision")
    found |= _version(_PREFIX + "cuda.driver-version.", node.driver_version, parts)
    found |= _version(_PREFIX + "cuda.runtime-version.", node.cuda_version, parts[:2])
    cuda = _version("", node.cuda_version, parts[:2])
    found |= {f"cuda-{part}-version": cuda[part] for part in parts[:2] if part in cuda}
    valid = {name: label_value(value) for name, value in found.items()}
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
        current = self._api.get(self._path)["metadata"].get("labels") or {}
        self._written = {name: current[name] for name in NAMES if name in current}

    def remove(self) -> None:
        """Remove all labels: the node no longer offers cards; ApiError."""
        self._patch({})
        self._written = {}

    def _patch(self, labels: Mapping[str, str]) -> None:
        """Set `labels`, and remove those of NAMES that are not in it."""
        body: Object = {"metadata": {"labels": {name: labels.get(name) for name in NAMES}}}
        self._api.patch(self._path, body)
