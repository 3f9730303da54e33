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
    card_family,
    driver_name,
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
        "device_type": _device_type(driver_name(card)),
        "device_cores": _CORES,
        "device_memory_limit": str(card["memory_bytes"] // _MIB),
    }
    return values[label]


def _device_type(name: str) -> str:
    """Return a model as HAMi names it since 2.10: the vendor once, NormalizeDeviceModel."""
    return name if name.startswith("NVIDIA") else f"NVIDIA-{name}"


_HOST: Final[Labels] = ("node", "device_index", "device_uuid", "device_type")
_SCHEDULER: Final[Labels] = ("node", "device_uuid", "device_index", "device_type")


def _card(
    names: tuple[str, str],
    text: str,
    source: str,
    value: Callable[[CardRow], float | None],
    labels: Labels = _SCHEDULER,
) -> _Named:
    def of(snapshot: Snapshot, card: CardRow) -> Labels:
        return (*(_label(snapshot, card, label) for label in labels), _ZONE)

    source = f"gpushare_card_{source}"
    family = card_family(names[0], text, value, ((*labels, "zone"), of), source=source)
    return _Named(family, names[1], _LEGACY_CARD)


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

    name, text = "hami_host_gpu_ecc_errors_total", "ECC errors in the card's lifetime."
    family = Family(name, "counter", labels, text, samples, "gpushare_card_ecc_errors_total")
    return _Named(family, "", _LEGACY_CARD)


def _container(
    names: tuple[str, str],
    text: str,
    source: str,
    value: Callable[[Snapshot, TenantCard], float | None],
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
    family = Family(names[0], "gauge", labels, text, samples, f"gpushare_container_{source}")
    return _Named(family, names[1], _LEGACY_PART)


def _allocated(
    names: tuple[str, str],
    text: str,
    source: str,
    value: Callable[[TenantRow, TenantCard], float],
) -> _Named:
    """Return a family of HAMi's scheduler: by the number of the container in its pod.

    HAMi counts as the pod's spec does, which is not known here: by name, of those with a GPU.
    """

    def samples(snapshot: Snapshot) -> Iterable[MetricSample]:
        latest = {pod_names(tenant): tenant for tenant in of_pods(snapshot)}
        for (namespace, pod), each in groupby(sorted(latest), key=lambda name: name[:2]):
            for number, name in enumerate(each):
                for part in latest[name]["cards"]:
                    labels = (namespace, snapshot.node, pod, str(number), part["uuid"], _ZONE)
                    yield labels, value(latest[name], part)

    labels: Labels = ("namespace", "node", "pod", "container_index", "device_uuid", "zone")
    family = Family(names[0], "gauge", labels, text, samples, f"gpushare_container_{source}")
    return _Named(family, names[1], _LEGACY_PART)


def _buffers(_: Snapshot, part: TenantCard) -> float:
    kinds = part["kinds"]
    return part["used_bytes"] - kinds["contexts"] - kinds["modules"]


def _cores(tenant: TenantRow, part: TenantCard) -> float:
    return 100 if mode_of(tenant) == "exclusive" else part["cores"]


_MONITOR: Final = (
    _card(
        ("hami_host_gpu_memory_used_bytes", "HostGPUMemoryUsage"),
        "Memory in use on the card, in bytes.",
        "memory_used_bytes",
        lambda card: card["used_bytes"],
        _HOST,
    ),
    _card(
        ("hami_host_gpu_utilization_ratio", "HostCoreUtilization"),
        "Utilization of the card, in percent.",
        "utilization_ratio",
        lambda card: card["utilization"],
        _HOST,
    ),
    _card(
        ("hami_host_gpu_memory_controller_utilization_ratio", ""),
        "Utilization of the memory interface, in percent.",
        "memory_copy_utilization_ratio",
        sensor("memory_copy_percent"),
        _HOST,
    ),
    _card(
        ("hami_host_gpu_temperature_celsius", ""),
        "Temperature of the card, in degrees Celsius.",
        "temperature_celsius",
        sensor("temperature_celsius"),
        _HOST,
    ),
    _card(
        ("hami_host_gpu_power_usage_watts", ""),
        "Power draw of the card, in watts.",
        "power_watts",
        sensor("power_milliwatts", 1e-3),
        _HOST,
    ),
    _ecc_errors(),
    _container(
        ("hami_vgpu_memory_used_bytes", "vGPU_device_memory_usage_in_bytes"),
        "vGPU memory in use, in bytes.",
        "memory_used_bytes",
        lambda _, part: part["used_bytes"],
    ),
    _container(
        ("hami_vgpu_memory_limit_bytes", "vGPU_device_memory_limit_in_bytes"),
        "vGPU memory limit, in bytes.",
        "memory_limit_bytes",
        lambda _, part: part["limit_bytes"],
    ),
    _container(
        ("hami_container_device_memory_bytes", "Device_memory_desc_of_container"),
        "Memory of the card that the container uses, in bytes.",
        "memory_used_bytes",
        lambda _, part: part["used_bytes"],
    ),
    _container(
        ("hami_container_device_utilization_ratio", "Device_utilization_desc_of_container"),
        "Utilization of the card by the container, in percent.",
        "cores_utilization_ratio",
        lambda _, part: part["utilization"],
    ),
    _container(
        ("hami_container_last_kernel_elapsed_seconds", "Device_last_kernel_of_container"),
        "Seconds since the container last used the card; before that, since its start.",
        "last_active_timestamp_seconds",
        lambda snapshot, part: max(0.0, snapshot.taken - part["last_active"]),
    ),
    _container(
        ("hami_vgpu_memory_context_bytes", ""),
        "Memory of contexts, in bytes.",
        "memory_used_bytes",
        lambda _, part: part["kinds"]["contexts"],
    ),
    _container(
        ("hami_vgpu_memory_module_bytes", ""),
        "Memory of modules, in bytes.",
        "memory_used_bytes",
        lambda _, part: part["kinds"]["modules"],
    ),
    _container(
        ("hami_vgpu_memory_buffer_bytes", ""),
        "All other memory, in bytes.",
        "memory_used_bytes",
        _buffers,
    ),
)
_OF_SCHEDULER: Final = (
    _card(
        ("hami_gpu_memory_limit_bytes", "GPUDeviceMemoryLimit"),
        "Memory of the card, in bytes.",
        "memory_capacity_bytes",
        lambda card: card["memory_bytes"],
    ),
    _card(
        ("hami_gpu_core_limit_ratio", "GPUDeviceCoreLimit"),
        "Compute of the card, in percent: 100.",
        "cores_allocated_ratio",
        lambda _: float(_CORES),
    ),
    _card(
        ("hami_gpu_memory_allocated_bytes", "GPUDeviceMemoryAllocated"),
        "Memory allocated to containers, in bytes.",
        "memory_allocated_bytes",
        lambda card: card["allocated_bytes"],
        ("node", "device_uuid", "device_index", "device_cores", "device_type"),
    ),
    _card(
        ("hami_gpu_shared_count", "GPUDeviceSharedNum"),
        "Containers on the card.",
        "tenants",
        lambda card: card["tenants"],
    ),
    _card(
        ("hami_gpu_core_allocated_ratio", "GPUDeviceCoreAllocated"),
        "Compute allocated to containers, in percent.",
        "cores_allocated_ratio",
        lambda card: 100 - card["cores_available"],
    ),
    _card(
        ("hami_node_gpu_overview", "nodeGPUOverview"),
        "Memory allocated to containers, in bytes.",
        "memory_allocated_bytes",
        lambda card: card["allocated_bytes"],
        (
            "node",
            "device_uuid",
            "device_index",
            "device_cores",
            "device_memory_limit",
            "device_type",
        ),
    ),
    _card(
        ("hami_node_gpu_memory_allocated_ratio", "nodeGPUMemoryPercentage"),
        "Fraction of the card's memory that is allocated, from 0 to 1.",
        "memory_allocated_bytes",
        lambda card: card["allocated_bytes"] / card["memory_bytes"],
        ("node", "device_uuid", "device_index"),
    ),
    _allocated(
        ("hami_vgpu_memory_allocated_bytes", "vGPUMemoryAllocated"),
        "Memory allocated to the container, in bytes.",
        "memory_quota_bytes",
        lambda _, part: part["quota_bytes"],
    ),
    _allocated(
        ("hami_vgpu_core_allocated_ratio", "vGPUCoreAllocated"),
        "Compute allocated to the container, in percent.",
        "cores_quota_ratio",
        _cores,
    ),
)
CURRENT: Final = tuple(each.family for each in (*_MONITOR, *_OF_SCHEDULER))
LEGACY: Final = tuple(each.legacy_family() for each in (*_MONITOR, *_OF_SCHEDULER) if each.legacy)
