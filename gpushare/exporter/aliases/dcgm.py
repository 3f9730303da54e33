# SPDX-License-Identifier: Apache-2.0
"""The names of dcgm-exporter up to 4.8: etc/default-counters.csv, with its units.

Version 4.9 has other names and units by default, which dashboards do not query yet. Counters are
exposed as gauges: a counter's name would have to end in _total.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gpushare.exporter.metric_family import Family, Labels, Snapshot, card_family, driver_name
from gpushare.exporter.sensors import sensor

if TYPE_CHECKING:
    from gpushare.protocol.rows import CardRow

_MIB: Final = 1 << 20
_LABELS: Final[Labels] = (
    "gpu",
    "UUID",
    "pci_bus_id",
    "device",
    "modelName",
    "Hostname",
    "DCGM_FI_DRIVER_VERSION",
)


def _labels(snapshot: Snapshot, card: CardRow) -> Labels:
    index = str(card["index"])
    driver = "" if snapshot.metrics is None else snapshot.metrics.node["driver_version"]
    names = f"nvidia{index}", driver_name(card), snapshot.node, driver
    return (index, card["uuid"], card["bus_id"], *names)


def _family(name: str, text: str, source: str, value: Callable[[CardRow], float | None]) -> Family:
    name = f"DCGM_FI_DEV_{name}"
    return card_family(name, text, value, (_LABELS, _labels), source=f"gpushare_card_{source}")


def _mib(size: float | None) -> float | None:
    return None if size is None else size / _MIB


def _free(card: CardRow) -> float | None:
    return None if card["used_bytes"] is None else card["memory_bytes"] - card["used_bytes"]


def _last_xid(card: CardRow) -> float:
    return float(next(reversed(card["xids"]), 0))


FAMILIES: Final = (
    _family("SM_CLOCK", "SM clock, in MHz.", "clock_hertz", sensor("sm_clock_mhz")),
    _family("MEM_CLOCK", "Memory clock, in MHz.", "clock_hertz", sensor("memory_clock_mhz")),
    _family(
        "MEMORY_TEMP",
        "Memory temperature, in degrees Celsius.",
        "memory_temperature_celsius",
        sensor("memory_temperature_celsius"),
    ),
    _family(
        "GPU_TEMP",
        "GPU temperature, in degrees Celsius.",
        "temperature_celsius",
        sensor("temperature_celsius"),
    ),
    _family(
        "POWER_USAGE",
        "Power draw, in watts.",
        "power_watts",
        sensor("power_milliwatts", 1e-3),
    ),
    _family(
        "TOTAL_ENERGY_CONSUMPTION",
        "Energy since the driver was loaded, in mJ.",
        "energy_joules_total",
        sensor("energy_millijoules"),
    ),
    _family(
        "PCIE_REPLAY_COUNTER",
        "PCIe retries.",
        "pcie_replays_total",
        sensor("pcie_replays"),
    ),
    _family(
        "GPU_UTIL",
        "GPU utilization, in percent.",
        "utilization_ratio",
        lambda card: card["utilization"],
    ),
    _family(
        "MEM_COPY_UTIL",
        "Utilization of the memory interface, in percent.",
        "memory_copy_utilization_ratio",
        sensor("memory_copy_percent"),
    ),
    _family(
        "ENC_UTIL",
        "Encoder utilization, in percent.",
        "encoder_utilization_ratio",
        sensor("encoder_percent"),
    ),
    _family(
        "DEC_UTIL",
        "Decoder utilization, in percent.",
        "decoder_utilization_ratio",
        sensor("decoder_percent"),
    ),
    _family("XID_ERRORS", "The last XID; 0: none.", "xid_errors_total", _last_xid),
    _family(
        "FB_FREE",
        "Free framebuffer memory, in MiB.",
        "memory_used_bytes",
        lambda card: _mib(_free(card)),
    ),
    _family(
        "FB_USED",
        "Framebuffer memory in use, in MiB.",
        "memory_used_bytes",
        lambda card: _mib(card["used_bytes"]),
    ),
    _family(
        "FB_RESERVED",
        "Framebuffer memory reserved by the driver, in MiB.",
        "memory_reserved_bytes",
        sensor("reserved_bytes", 1 / _MIB),
    ),
    _family(
        "UNCORRECTABLE_REMAPPED_ROWS",
        "Rows remapped after uncorrectable errors.",
        "remapped_rows",
        sensor("uncorrectable_rows"),
    ),
    _family(
        "CORRECTABLE_REMAPPED_ROWS",
        "Rows remapped after correctable errors.",
        "remapped_rows",
        sensor("correctable_rows"),
    ),
    _family(
        "ROW_REMAP_FAILURE",
        "1 if remapping a row has failed.",
        "row_remap_failed",
        sensor("row_remap_failures"),
    ),
)
