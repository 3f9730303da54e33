# SPDX-License-Identifier: Apache-2.0
"""The metric families of a card's hardware: what NVML reports, some seconds old. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, cast

from gpushare.exporter.metric_family import (
    OF_CARD,
    Family,
    MetricSample,
    MetricType,
    Snapshot,
    card_family,
    card_labels,
)

if TYPE_CHECKING:
    from gpushare.protocol.rows import CardRow

SensorValue = Callable[["CardRow"], "float | None"]


def sensor(name: str, factor: float = 1) -> SensorValue:
    """Return what reads the key `name` of CardSensors, times `factor`; None: not known."""

    def value(card: CardRow) -> float | None:
        figures = cast("Mapping[str, int]", card["sensors"])
        return figures[name] * factor if name in figures else None

    return value


def _labeled(
    name: str, text: str, label: str, values: Mapping[str, SensorValue], kind: MetricType = "gauge"
) -> Family:
    """Return a family with values by an additional label."""

    def samples(snapshot: Snapshot) -> Iterable[MetricSample]:
        for card in snapshot.cards:
            for which, value in values.items():
                figure = value(card)
                if figure is not None:
                    yield (*card_labels(snapshot, card), which), figure

    return Family(name, kind, (*OF_CARD, label), text, samples)


FAMILIES: Final = (
    card_family(
        "gpushare_card_temperature_celsius",
        "Temperature of the GPU.",
        sensor("temperature_celsius"),
    ),
    card_family(
        "gpushare_card_memory_temperature_celsius",
        "Temperature of the memory.",
        sensor("memory_temperature_celsius"),
    ),
    card_family("gpushare_card_power_watts", "Power draw.", sensor("power_milliwatts", 1e-3)),
    card_family(
        "gpushare_card_energy_joules_total",
        "Energy since the driver was loaded.",
        sensor("energy_millijoules", 1e-3),
        kind="counter",
    ),
    _labeled(
        "gpushare_card_clock_hertz",
        "Clock of the multiprocessors (sm) and of the memory.",
        "clock",
        {"sm": sensor("sm_clock_mhz", 1e6), "memory": sensor("memory_clock_mhz", 1e6)},
    ),
    card_family(
        "gpushare_card_memory_copy_utilization_ratio",
        "Share of time in which memory was read or written.",
        sensor("memory_copy_percent", 1e-2),
    ),
    card_family(
        "gpushare_card_encoder_utilization_ratio",
        "Share of time the encoder was busy.",
        sensor("encoder_percent", 1e-2),
    ),
    card_family(
        "gpushare_card_decoder_utilization_ratio",
        "Share of time the decoder was busy.",
        sensor("decoder_percent", 1e-2),
    ),
    card_family(
        "gpushare_card_memory_reserved_bytes",
        "Memory that the driver reserves for itself.",
        sensor("reserved_bytes"),
    ),
    card_family(
        "gpushare_card_pcie_replays_total",
        "PCIe retries.",
        sensor("pcie_replays"),
        kind="counter",
    ),
    _labeled(
        "gpushare_card_ecc_errors_total",
        "ECC errors in the card's lifetime, corrected and uncorrected.",
        "type",
        {
            "corrected": sensor("corrected_ecc_errors"),
            "uncorrected": sensor("uncorrected_ecc_errors"),
        },
        "counter",
    ),
    _labeled(
        "gpushare_card_remapped_rows",
        "Rows of memory remapped after correctable and uncorrectable errors.",
        "cause",
        {"correctable": sensor("correctable_rows"), "uncorrectable": sensor("uncorrectable_rows")},
    ),
    card_family(
        "gpushare_card_row_remap_failed",
        "1 if remapping a row of memory has failed.",
        sensor("row_remap_failures"),
    ),
)
