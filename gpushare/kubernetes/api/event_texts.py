# SPDX-License-Identifier: Apache-2.0
"""What the user of a pod reads about it: an event of the history as a Kubernetes event. Pure.

A text contains only figures of the pod itself, and never the name of another container: pods of
other namespaces are not for its user to know.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpushare.quota.size import format_size

NORMAL: Final = "Normal"
WARNING: Final = "Warning"
MESSAGE_CHARACTERS: Final = 1024  # Source: events in k8s.io/client-go
ANOTHER: Final = "another container"


@dataclass(frozen=True)
class PodEventText:
    """The `reason` and `type` of an event, and its message: `{field}` is a field of the history."""

    reason: str
    type: str
    message: str


#: By the history's event (gpushare/events.py).
TEXTS: Final[Mapping[str, PodEventText]] = {
    "request-refused": PodEventText("GpuRefused", WARNING, "{error}"),
    "tenant-not-allocated": PodEventText("GpuNotAllocated", NORMAL, "no GPU: {reason}"),
    "tenant-request-adjusted": PodEventText("GpuRequestAdjusted", NORMAL, "{note}"),
    "tenant-resized": PodEventText(
        "GpuQuotaChanged", NORMAL, "the operator of the node changed the quota"
    ),
    "tenant-frozen": PodEventText("GpuFrozen", WARNING, "all processes were frozen: {reason}"),
    "tenant-thawed": PodEventText("GpuResumed", NORMAL, "the processes were resumed"),
    "tenant-stop-requested": PodEventText(
        "GpuStopRequested",
        WARNING,
        "the operator of the node sent {signal}; SIGKILL follows after {timeout} s",
    ),
    "tenant-killed": PodEventText("GpuKilled", WARNING, "all processes were killed: {reason}"),
    "tenant-hung": PodEventText(
        "GpuHung", WARNING, "work is pending on the card that does not seem to end"
    ),
    "over-quota-detected": PodEventText(
        "GpuOverQuota", WARNING, "uses {used_bytes} of GPU memory, over its limit of {limit_bytes}"
    ),
    "over-quota-warned": PodEventText(
        "GpuOverQuota",
        WARNING,
        "uses {used_bytes} of GPU memory, over its limit of {limit_bytes}. Free memory, or it is "
        "frozen",
    ),
    "over-quota-frozen": PodEventText(
        "GpuOverQuota",
        WARNING,
        "used {used_bytes} of GPU memory, over its limit of {limit_bytes}, and was frozen",
    ),
    "over-quota-killed": PodEventText(
        "GpuOverQuota",
        WARNING,
        "used {used_bytes} of GPU memory, over its limit of {limit_bytes}, and was killed",
    ),
    "over-quota-cleared": PodEventText("GpuWithinQuota", NORMAL, "is within its quota again"),
    "over-quota-thawed": PodEventText(
        "GpuWithinQuota", NORMAL, "is within its quota again and was resumed"
    ),
    "memory-shortfall-reported": PodEventText(
        "GpuMemoryShortfall",
        WARNING,
        "the card could not provide {requested_bytes} that are within the quota",
    ),
    "gate-bypass-detected": PodEventText(
        "GpuComputeOverShare", WARNING, "work bypasses the launch gate of its compute share"
    ),
    "duty-cycle-started": PodEventText(
        "GpuComputeLimited", WARNING, "is limited to its compute share by pausing it: {reason}"
    ),
    "duty-cycle-ended": PodEventText("GpuComputeUnlimited", NORMAL, "runs all the time again"),
    "card-unhealthy": PodEventText(
        "GpuUnhealthy", WARNING, "a card of this container is unhealthy: {reason}"
    ),
    "card-recovered": PodEventText(
        "GpuHealthy", NORMAL, "the card of this container is healthy again"
    ),
}
#: Not in the history; from the figures of the container.
OUT_OF_MEMORY: Final = PodEventText(
    "GpuOutOfMemory",
    WARNING,
    "an allocation of GPU memory was refused: it would exceed the quota of {quota_bytes}",
)
THROTTLED: Final = PodEventText(
    "GpuThrottled",
    NORMAL,
    "waited for the card for {percent} % of the last minute: its compute share is {cores} %",
)


def message_of(
    text: PodEventText, fields: Mapping[str, Any], container: str, others: Collection[str] = ()
) -> str:
    """Return the message of an event of `container`, without the names in `others`."""
    shown = {name: _shown(name, value) for name, value in fields.items()}
    try:
        said = text.message.format_map(shown)
    except KeyError:  # of a gpushared of another version
        said = text.message.partition("{")[0]
    said = without_names(said.rstrip(": "), others)
    return f"container {container}: {said}"[:MESSAGE_CHARACTERS]


def without_names(text: str, names: Collection[str]) -> str:
    """Return `text` with each of `names` replaced, the longest first."""
    for name in sorted(filter(None, names), key=len, reverse=True):
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", ANOTHER, text)
    return text


def _shown(name: str, value: Any) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return format_size(value)
    return str(value)
