# SPDX-License-Identifier: Apache-2.0
"""What NVML says of where cards are, and of what is between them; placement/model.py has the links.

It runs in the NVML worker. A driver that knows no such call, or has no answer, leaves its part out.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any, Final

import pynvml

_NODES_MOST: Final = 1024  # MAX_NUMNODES of Linux is that at most (mm/Kconfig, NODES_SHIFT)
_WORD_BITS: Final = 8 * ctypes.sizeof(ctypes.c_ulong)


def topology_facts(handles: Mapping[str, Any]) -> dict[str, Any]:
    """Return where each card of `handles` (by UUID) is, and what is between each two.

    `cards`: by UUID its PCI address, its NUMA node where NVML reports one, and the PCI addresses at
    the ends of its NVLinks that are up. `pairs`: the two, the level of what they have in common,
    and whether they reach each other over NVLink at all.
    """
    return {
        "cards": {uuid: _card(handle, linked=len(handles) > 1) for uuid, handle in handles.items()},
        "pairs": [_pair(one, other, handles) for one, other in combinations(handles, 2)],
    }


def _card(handle: Any, *, linked: bool) -> dict[str, Any]:
    pci = _call_or_none(pynvml.nvmlDeviceGetPciInfo, handle)
    return {
        "address": None if pci is None else _address(pci),
        "node": _node(handle),
        "ends": _ends(handle) if linked else [],
    }


def _pair(one: str, other: str, handles: Mapping[str, Any]) -> dict[str, Any]:
    both = handles[one], handles[other]
    nvlink = _call_or_none(pynvml.nvmlDeviceGetP2PStatus, *both, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    return {
        "one": one,
        "other": other,
        "level": _call_or_none(pynvml.nvmlDeviceGetTopologyCommonAncestor, *both),
        "nvlink": nvlink == pynvml.NVML_P2P_STATUS_OK,
    }


def _node(handle: Any) -> int | None:
    """Return the one node whose memory is the card's; None where there are none or several."""
    words = _NODES_MOST // _WORD_BITS
    scope = pynvml.NVML_AFFINITY_SCOPE_NODE
    found = _call_or_none(pynvml.nvmlDeviceGetMemoryAffinity, handle, words, scope)
    nodes = [
        place * _WORD_BITS + bit
        for place, word in enumerate(found or ())
        for bit in range(_WORD_BITS)
        if word >> bit & 1
    ]
    return nodes[0] if len(nodes) == 1 else None


def _ends(handle: Any) -> list[str]:
    """Return what is at the end of each link that is up."""
    ends = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = _call_or_none(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:
            break  # a card without links, or behind its last one
        if state != pynvml.NVML_FEATURE_ENABLED:
            continue
        pci = _call_or_none(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        if pci is not None:
            ends.append(_address(pci))
    return ends


def _address(pci: Any) -> str:
    """Return a PCI address as sysfs writes it: its folder in /sys/bus/pci/devices."""
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def _call_or_none(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return what NVML answers; None for an error, and for a call that it does not have."""
    try:
        return call(*arguments)
    except pynvml.NVMLError:
        return None
