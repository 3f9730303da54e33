# SPDX-License-Identifier: Apache-2.0
"""The names of HAMi 2.10 (cmd/vGPUmonitor, cmd/scheduler): current ones, and those before 2.9.

HAMi calls percentages ratios. The legacy names have the same values with other label names.
`Device_memory_desc_of_container` lacks four labels whose values are sizes: each change of one would
be a new series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from gpushare.exporter.metric_family import (
    Family,
    Labels,
    MetricSample,
    Snapshot,
    alias_text,
    card_family,
    figure,
    mode_of,
    of_pods,
    pod_names,
)
from gpushare.exporter.sensors import sensor

if TYPE_CHECKING:
    from gpushare.protocol.rows import CardRow, TenantCard, TenantRow

_ZONE: Final = "vGPU"  # HAMi's label of all series
_CORES: Final = "100"  # of a card
_MIB: Final = 1 << 20
_PERCENT: Final = "in percent"
_LEGACY_CARD: Final[Mapping[str, str]] = {
    "node": "nodeid",
    "device_index": "deviceidx",
    "device_uuid": "deviceuuid",
    "device_type": "devicetype",
    "device_cores": "devicecores",
    "device_memory_limit": "devicememorylimit",
}
_LEGACY_PART: Final[Mapping[str, str]] = {
    "namespace": "podnamespace",
    "node": "nodename",
    "pod": "podname",
    "container": "ctrname",
    "container_index": "containeridx",
    "vdevice_index": "vdeviceid",
    "device_uuid": "deviceuuid",
}


class _Named(NamedTuple):
    """A family, its legacy name ("": none), and the legacy names of its labels."""

    family: Family
    legacy: str
    labels: Mapping[str, str]

    def legacy_family(self) -> Family:
        labels = tuple(self.labels.get(label, label) for label in self.family.labels)
        return replace(self.family, name=self.legacy, labels=labels)


def _label(snapshot: Snapshot, card: CardRow, label: str) -> str:
    values = {
        "node": snapshot.node,
        "device_index": str(card["index"]),
        "device_uuid": card["uuid"],
        "device_type": _device_type(card["name"]),
        "device_cores": _CORES,
        "device_memory_limit": str(card["memory_bytes"] // _MIB),
    }
    return values[label]


def _device_type(name: str) -> str:
    """Return a model as HAMi names it since 2.10: the vendor once, NormalizeDeviceModel."""
    return name if name.startswith("NVIDIA") else f"NVIDIA-{name}"


_HOST: Final[Labels] = ("node", "device_index", "device_uuid", "device_type")
_SCHEDULER: Final[Labels] = ("node", "device_uuid", "device_index", "device_type")


def _card(  # noqa: PLR0913 - each has a default
    name: str,
    legacy: str,
    source: str,
    value: Callable[[CardRow], float | None],
    form: str = "",
    *,
    labels: Labels = _SCHEDULER,
) -> _Named:
    def of(snapshot: Snapshot, card: CardRow) -> Labels:
        return (*(_label(snapshot, card, label) for label in labels), _ZONE)

    text = alias_text(f"gpushare_card_{source}", form)
    family = card_family(f"hami_{name}", text, value, ((*labels, "zone"), of))
    return _Named(family, legacy, _LEGACY_CARD)


def _host(
    name: str, legacy: str, source: str, value: Callable[[CardRow], float | None], form: str = ""
) -> _Named:
    return _card(f"host_gpu_{name}", legacy, source, value, form, labels=_HOST)


def _ecc_errors() -> _Named:
    labels: Labels = (*_HOST, "error_type", "zone")

    def samples(snapshot: Snapshot) -> Iterable[MetricSample]:
        for card in snapshot.cards:
            host = tuple(_label(snapshot, card, label) for label in _HOST)
            for kind, value in (
                ("corrected", sensor("corrected_ecc_errors")(card)),
                ("uncorrected", sensor("uncorrected_ecc_errors")(card)),
            ):
                if value is not None:
                    yield (*host, kind, _ZONE), value

    text = alias_text("gpushare_card_ecc_errors_total")
    family = Family("hami_host_gpu_ecc_errors_total", "counter", labels, text, samples)
    return _Named(family, "", _LEGACY_CARD)


def _container(
    name: str,
    legacy: str,
    source: str,
    value: Callable[[Snapshot, TenantCard], float | None],
    form: str = "",
) -> _Named:
    """Return a family of HAMi's monitor: by the number of the card in the container."""

    def samples(snapshot: Snapshot) -> Iterable[MetricSample]:
        found: dict[Labels, float] = {}
        for tenant in of_pods(snapshot):
            for number, part in enumerate(tenant["cards"]):
                figure = value(snapshot, part)
                if figure is not None:
                    of = (*pod_names(tenant), str(number), part["uuid"], _ZONE)
                    found[of] = figure
        return found.items()

    labels: Labels = ("namespace", "pod", "container", "vdevice_index", "device_uuid", "zone")
    text = alias_text(f"gpushare_container_{source}", form)
    return _Named(Family(f"hami_{name}", "gauge", labels, text, samples), legacy, _LEGACY_PART)


def _allocated(
    name: str,
    legacy: str,
    source: str,
    value: Callable[[TenantRow, TenantCard], float],
    form: str = "",
) -> _Named:
    """Return a family of HAMi's scheduler: by the number of the container in its pod.

    HAMi counts as the pod's spec does, which is not known here: by name, of those with a GPU.
    """

    def samples(snapshot: Snapshot) -> Iterable[MetricSample]:
        latest = {pod_names(tenant): tenant for tenant in of_pods(snapshot)}
        for (namespace, pod), each in groupby(sorted(latest), key=lambda name: name[:2]):
            for number, container in enumerate(each):
                for part in latest[container]["cards"]:
                    labels = (namespace, snapshot.node, pod, str(number), part["uuid"], _ZONE)
                    yield labels, value(latest[container], part)

    labels: Labels = ("namespace", "node", "pod", "container_index", "device_uuid", "zone")
    text = alias_text(f"gpushare_container_{source}", form)
    return _Named(Family(f"hami_{name}", "gauge", labels, text, samples), legacy, _LEGACY_PART)


def _used(_: Snapshot, part: TenantCard) -> float:
    return part["used_bytes"]


def _buffers(_: Snapshot, part: TenantCard) -> float:
    kinds = part["kinds"]
    return part["used_bytes"] - kinds["contexts"] - kinds["modules"]


def _idle_seconds(snapshot: Snapshot, part: TenantCard) -> float:
    return max(0.0, snapshot.taken - part["last_active"])


def _cores(tenant: TenantRow, part: TenantCard) -> float:
    return 100 if mode_of(tenant) == "exclusive" else part["cores"]


_MONITOR: Final = (
    _host("memory_used_bytes", "HostGPUMemoryUsage", "memory_used_bytes", figure("used_bytes")),
    _host(
        "utilization_ratio",
        "HostCoreUtilization",
        "utilization_ratio",
        figure("utilization"),
        _PERCENT,
    ),
    _host(
        "memory_controller_utilization_ratio",
        "",
        "memory_copy_utilization_ratio",
        sensor("memory_copy_percent"),
        _PERCENT,
    ),
    _host("temperature_celsius", "", "temperature_celsius", sensor("temperature_celsius")),
    _host("power_usage_watts", "", "power_watts", sensor("power_milliwatts", 1e-3)),
    _ecc_errors(),
    _container(
        "vgpu_memory_used_bytes", "vGPU_device_memory_usage_in_bytes", "memory_used_bytes", _used
    ),
    _container(
        "vgpu_memory_limit_bytes",
        "vGPU_device_memory_limit_in_bytes",
        "memory_limit_bytes",
        lambda _, part: part["limit_bytes"],
    ),
    _container(
        "container_device_memory_bytes",
        "Device_memory_desc_of_container",
        "memory_used_bytes",
        _used,
    ),
    _container(
        "container_device_utilization_ratio",
        "Device_utilization_desc_of_container",
        "cores_utilization_ratio",
        lambda _, part: part["utilization"],
        _PERCENT,
    ),
    _container(
        "container_last_kernel_elapsed_seconds",
        "Device_last_kernel_of_container",
        "last_active_timestamp_seconds",
        _idle_seconds,
        "in seconds since then",
    ),
    _container(
        "vgpu_memory_context_bytes",
        "",
        "memory_used_bytes",
        lambda _, part: part["kinds"]["contexts"],
        "of contexts alone",
    ),
    _container(
        "vgpu_memory_module_bytes",
        "",
        "memory_used_bytes",
        lambda _, part: part["kinds"]["modules"],
        "of modules alone",
    ),
    _container(
        "vgpu_memory_buffer_bytes",
        "",
        "memory_used_bytes",
        _buffers,
        "without contexts and modules",
    ),
)
_OF_SCHEDULER: Final = (
    _card(
        "gpu_memory_limit_bytes",
        "GPUDeviceMemoryLimit",
        "memory_capacity_bytes",
        figure("memory_bytes"),
    ),
    _card(
        "gpu_core_limit_ratio",
        "GPUDeviceCoreLimit",
        "cores_allocated_ratio",
        lambda _: float(_CORES),
        "but what can be allocated: always 100",
    ),
    _card(
        "gpu_memory_allocated_bytes",
        "GPUDeviceMemoryAllocated",
        "memory_allocated_bytes",
        figure("allocated_bytes"),
        labels=("node", "device_uuid", "device_index", "device_cores", "device_type"),
    ),
    _card("gpu_shared_count", "GPUDeviceSharedNum", "tenants", figure("tenants")),
    _card(
        "gpu_core_allocated_ratio",
        "GPUDeviceCoreAllocated",
        "cores_allocated_ratio",
        lambda card: 100 - card["cores_available"],
        _PERCENT,
    ),
    _card(
        "node_gpu_overview",
        "nodeGPUOverview",
        "memory_allocated_bytes",
        figure("allocated_bytes"),
        labels=(*_SCHEDULER[:3], "device_cores", "device_memory_limit", "device_type"),
    ),
    _card(
        "node_gpu_memory_allocated_ratio",
        "nodeGPUMemoryPercentage",
        "memory_allocated_bytes",
        lambda card: card["allocated_bytes"] / card["memory_bytes"],
        "as a part of the card, from 0 to 1",
        labels=("node", "device_uuid", "device_index"),
    ),
    _allocated(
        "vgpu_memory_allocated_bytes",
        "vGPUMemoryAllocated",
        "memory_quota_bytes",
        lambda _, part: part["quota_bytes"],
    ),
    _allocated(
        "vgpu_core_allocated_ratio", "vGPUCoreAllocated", "cores_quota_ratio", _cores, _PERCENT
    ),
)
CURRENT: Final = tuple(each.family for each in (*_MONITOR, *_OF_SCHEDULER))
LEGACY: Final = tuple(each.legacy_family() for each in (*_MONITOR, *_OF_SCHEDULER) if each.legacy)
