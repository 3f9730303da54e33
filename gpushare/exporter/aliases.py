# SPDX-License-Identifier: Apache-2.0
"""The metric names of other exporters, so that their dashboards work. Off by default.

Each metric has the meaning and the unit (percent, MiB) of the original. Metrics that gpushare does
not know, or defines differently, are omitted: temperatures, clocks, the last kernel. The labels are
those of HAMi 2.9 (cmd/vGPUmonitor), gpu-manager 1.1 (pkg/services/display) and dcgm-exporter. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from gpushare.exporter.metric_family import Family, Labels, MetricSample, Snapshot, pod_names

if TYPE_CHECKING:
    from gpushare.metrics_schema import CardMetrics, TenantCardMetrics, TenantMetrics

_MIB: Final = 1 << 20
_OF_HAMI: Final[Labels] = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
_OF_HAMI_HOST: Final[Labels] = ("node", "device_index", "device_uuid", "device_type")
_OF_DCGM: Final[Labels] = ("gpu", "UUID", "device", "modelName", "Hostname")
_OF_GPU_MANAGER: Final[Labels] = ("pod_name", "namespace", "node", "container_name")


def _hami(name: str, text: str, value: Callable[[TenantCardMetrics], float | None]) -> Family:
    def samples(snapshot: Snapshot) -> Iterable[MetricSample]:
        found: dict[Labels, float] = {}
        for tenant in _of_pods(snapshot):
            for number, part in enumerate(tenant["cards"]):
                figure = value(part)
                if figure is not None:
                    labels = (*pod_names(tenant), str(number), part["uuid"])
                    found[labels] = figure
        return found.items()

    return Family(name, "gauge", _OF_HAMI, text, samples)


def _of_cards(
    name: str,
    text: str,
    labels: Labels,
    values: Callable[[Snapshot, CardMetrics], Labels],
    value: Callable[[CardMetrics], float | None],
) -> Family:
    def samples(snapshot: Snapshot) -> Iterable[MetricSample]:
        for card in snapshot.cards:
            figure = value(card)
            if figure is not None:
                yield values(snapshot, card), figure

    return Family(name, "gauge", labels, text, samples)


def _gpu_manager(
    name: str,
    text: str,
    label: str,
    value: Callable[[TenantCardMetrics], float | None],
    *,
    each: bool = True,
) -> Family:
    def samples(snapshot: Snapshot) -> Iterable[MetricSample]:
        found: dict[Labels, float] = {}
        for tenant in _of_pods(snapshot):
            namespace, pod, container = pod_names(tenant)
            labels = (pod, namespace, snapshot.node, container)
            figures = [(part, value(part)) for part in tenant["cards"]]
            known = [(part, figure) for part, figure in figures if figure is not None]
            if each:
                found |= {(*labels, f"gpu{part['index']}"): figure for part, figure in known}
            if len(known) == len(figures):
                found |= {(*labels, "total"): sum(figure for _, figure in known)}
        return found.items()

    return Family(name, "gauge", (*_OF_GPU_MANAGER, label), text, samples)


def _of_pods(snapshot: Snapshot) -> Iterable[TenantMetrics]:
    """Return the containers of pods, the only ones that the originals know, by creation time.

    Of two containers with the same name, the later one counts.
    """
    found = (tenant for tenant in snapshot.tenants if all(pod_names(tenant)))
    return sorted(found, key=lambda tenant: tenant["created"])


def _host(snapshot: Snapshot, card: CardMetrics) -> Labels:
    return snapshot.node, str(card["index"]), card["uuid"], f"NVIDIA-{card['model']}"


def _dcgm(snapshot: Snapshot, card: CardMetrics) -> Labels:
    index = str(card["index"])
    return index, card["uuid"], f"nvidia{index}", card["model"], snapshot.node


def _free(card: CardMetrics) -> float | None:
    return None if card["used_bytes"] is None else card["memory_bytes"] - card["used_bytes"]


def _mib(size: float | None) -> float | None:
    return None if size is None else size / _MIB


def _buffers(part: TenantCardMetrics) -> float:
    kinds = part["kinds"]
    return part["used_bytes"] - kinds["context"] - kinds["module"]


COMPAT: Final[Mapping[str, tuple[Family, ...]]] = {
    "hami": (
        _hami(
            "hami_vgpu_memory_used_bytes",
            "vGPU memory in use, in bytes.",
            lambda part: part["used_bytes"],
        ),
        _hami(
            "hami_vgpu_memory_limit_bytes",
            "vGPU memory limit, in bytes.",
            lambda part: part["limit_bytes"],
        ),
        _hami(
            "hami_container_device_memory_bytes",
            "Memory of the card that the container uses, in bytes.",
            lambda part: part["used_bytes"],
        ),
        _hami(
            "hami_container_device_utilization_ratio",
            "Utilization of the card by the container, in percent.",
            lambda part: part["utilization"],
        ),
        _hami(
            "hami_vgpu_memory_context_bytes",
            "Memory of contexts, in bytes.",
            lambda part: part["kinds"]["context"],
        ),
        _hami(
            "hami_vgpu_memory_module_bytes",
            "Memory of modules, in bytes.",
            lambda part: part["kinds"]["module"],
        ),
        _hami("hami_vgpu_memory_buffer_bytes", "All other memory, in bytes.", _buffers),
        _of_cards(
            "hami_host_gpu_memory_used_bytes",
            "Memory in use on the card, in bytes.",
            _OF_HAMI_HOST,
            _host,
            lambda card: card["used_bytes"],
        ),
        _of_cards(
            "hami_host_gpu_utilization_ratio",
            "Utilization of the card, in percent.",
            _OF_HAMI_HOST,
            _host,
            lambda card: card["utilization"],
        ),
    ),
    "dcgm": (
        _of_cards(
            "DCGM_FI_DEV_GPU_UTIL",
            "GPU utilization, in percent.",
            _OF_DCGM,
            _dcgm,
            lambda card: card["utilization"],
        ),
        _of_cards(
            "DCGM_FI_DEV_FB_USED",
            "Framebuffer memory in use, in MiB.",
            _OF_DCGM,
            _dcgm,
            lambda card: _mib(card["used_bytes"]),
        ),
        _of_cards(
            "DCGM_FI_DEV_FB_FREE",
            "Free framebuffer memory, in MiB.",
            _OF_DCGM,
            _dcgm,
            lambda card: _mib(_free(card)),
        ),
    ),
    "gpu-manager": (
        _gpu_manager(
            "container_gpu_utilization",
            "Utilization of the card by the container, in percent.",
            "gpu",
            lambda part: part["utilization"],
        ),
        _gpu_manager(
            "container_gpu_memory_total",
            "Memory that the container uses, in MiB.",
            "gpu_memory",
            lambda part: part["used_bytes"] / _MIB,
        ),
        _gpu_manager(
            "container_request_gpu_memory",
            "Memory that the container requests, in MiB.",
            "req_of_gpu_memory",
            lambda part: part["memory_bytes"] / _MIB,
            each=False,
        ),
    ),
}
