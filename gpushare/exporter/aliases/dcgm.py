# SPDX-License-Identifier: Apache-2.0
"""The names of dcgm-exporter up to 4.8: etc/default-counters.csv, with its units.

Version 4.9 has other names and units by default, which dashboards do not query yet. Counters are
exposed as gauges: a counter's name would have to end in _total.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gpushare.exporter.metric_family import (
    Family,
    Labels,
    Snapshot,
    alias_text,
    card_family,
    figure,
)
from gpushare.exporter.sensors import sensor

if TYPE_CHECKING:
    from gpushare.protocol.rows import CardRow

_MIB: Final = 1 << 20
_PERCENT: Final = "in percent"
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
    names = f"nvidia{index}", card["name"], snapshot.node, driver
    return (index, card["uuid"], card["bus_id"], *names)


def _family(
    name: str, source: str, value: Callable[[CardRow], float | None], form: str = ""
) -> Family:
    text = alias_text(f"gpushare_card_{source}", form)
    return card_family(f"DCGM_FI_DEV_{name}", text, value, (_LABELS, _labels))


def _used(card: CardRow) -> float | None:
    return None if card["used_bytes"] is None else card["used_bytes"] / _MIB


def _free(card: CardRow) -> float | None:
    used = card["used_bytes"]
    return None if used is None else (card["memory_bytes"] - used) / _MIB


def _last_xid(card: CardRow) -> float:
    return float(next(reversed(card["xids"]), 0))


FAMILIES: Final = (
    _family("SM_CLOCK", "clock_hertz", sensor("sm_clock_mhz"), "in MHz"),
    _family("MEM_CLOCK", "clock_hertz", sensor("memory_clock_mhz"), "in MHz"),
    _family("MEMORY_TEMP", "memory_temperature_celsius", sensor("memory_temperature_celsius")),
    _family("GPU_TEMP", "temperature_celsius", sensor("temperature_celsius")),
    _family("POWER_USAGE", "power_watts", sensor("power_milliwatts", 1e-3)),
    _family(
        "TOTAL_ENERGY_CONSUMPTION", "energy_joules_total", sensor("energy_millijoules"), "in mJ"
    ),
    _family("PCIE_REPLAY_COUNTER", "pcie_replays_total", sensor("pcie_replays")),
    _family("GPU_UTIL", "utilization_ratio", figure("utilization"), _PERCENT),
    _family(
        "MEM_COPY_UTIL", "memory_copy_utilization_ratio", sensor("memory_copy_percent"), _PERCENT
    ),
    _family("ENC_UTIL", "encoder_utilization_ratio", sensor("encoder_percent"), _PERCENT),
    _family("DEC_UTIL", "decoder_utilization_ratio", sensor("decoder_percent"), _PERCENT),
    _family("XID_ERRORS", "xid_errors_total", _last_xid, "the number of the last one, 0 for none"),
    _family("FB_FREE", "memory_used_bytes", _free, "what is left of the card, in MiB"),
    _family("FB_USED", "memory_used_bytes", _used, "in MiB"),
    _family("FB_RESERVED", "memory_reserved_bytes", sensor("reserved_bytes", 1 / _MIB), "in MiB"),
    _family("UNCORRECTABLE_REMAPPED_ROWS", "remapped_rows", sensor("uncorrectable_rows")),
    _family("CORRECTABLE_REMAPPED_ROWS", "remapped_rows", sensor("correctable_rows")),
    _family("ROW_REMAP_FAILURE", "row_remap_failed", sensor("row_remap_failures")),
)
