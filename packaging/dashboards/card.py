# SPDX-License-Identifier: Apache-2.0
"""The dashboard of one or more cards."""

from __future__ import annotations

from typing import Final

from .dashboard import Row
from .panel import BYTES, CELSIUS, COUNT, HERTZ, RATIO, WATTS, Panel, Query, graph, stat
from .queries import CARD_NAME, CONTAINER_NAME, by_container, of_card, of_part, per_second


def _of_cards(title: str, name: str, unit: str, most: float | None = None) -> Panel:
    return graph(title, unit, Query(of_card(name), CARD_NAME), most=most)


ROWS: Final = (
    Row(
        "Now",
        [
            stat(title, f"sum({of_card(name)})", unit)
            for title, name, unit in (
                ("Memory", "memory_capacity_bytes", BYTES),
                ("Allocated", "memory_allocated_bytes", BYTES),
                ("Available", "memory_available_bytes", BYTES),
                ("Used", "memory_used_bytes", BYTES),
                ("Containers", "tenants", COUNT),
                ("Maximum containers", "max_tenants", COUNT),
            )
        ],
    ),
    Row(
        "Card",
        (
            _of_cards("Utilization", "utilization_ratio", RATIO, most=1),
            _of_cards("Compute allocated", "cores_allocated_ratio", RATIO),
            _of_cards("Memory used", "memory_used_bytes", BYTES),
            _of_cards("Memory allocated", "memory_allocated_bytes", BYTES),
        ),
    ),
    Row(
        "Hardware",
        (
            _of_cards("Power", "power_watts", WATTS),
            _of_cards("Temperature", "temperature_celsius", CELSIUS),
            graph(
                *("Clocks", HERTZ),
                Query(of_card("clock_hertz"), f"{CARD_NAME} {{{{clock}}}}"),
            ),
            graph(
                *("Memory interface, encoder and decoder", RATIO),
                Query(of_card("memory_copy_utilization_ratio"), f"{CARD_NAME} memory"),
                Query(of_card("encoder_utilization_ratio"), f"{CARD_NAME} encoder"),
                Query(of_card("decoder_utilization_ratio"), f"{CARD_NAME} decoder"),
                most=1,
            ),
        ),
    ),
    Row(
        "Containers",
        (
            graph(
                *("Memory used by container", BYTES),
                Query(by_container(of_part("memory_used_bytes")), CONTAINER_NAME),
                stacked=True,
            ),
            graph(
                *("Compute used by container", RATIO),
                Query(by_container(per_second("gpu_time_seconds_total")), CONTAINER_NAME),
                stacked=True,
            ),
        ),
    ),
    Row(
        "Evicted and MPS",
        (
            _of_cards("Evicted memory", "memory_evicted_bytes", BYTES),
            _of_cards("Evicted containers", "tenants_evicted", COUNT),
            graph(
                *("Evicted memory by container", BYTES),
                Query(by_container(of_part("memory_evicted_bytes")), CONTAINER_NAME),
                stacked=True,
            ),
            graph(
                *("Containers by isolation", COUNT),
                Query(f"sum by (level) ({of_part('isolation')})", "{{level}}"),
                stacked=True,
                text="What enforces the quotas: mps is an MPS server that gpushare runs.",
            ),
        ),
    ),
    Row(
        "Errors",
        (
            graph(
                "XID errors",
                COUNT,
                Query(
                    "sum by (node, gpu_index) "
                    f"(increase({of_card('xid_errors_total')}[$__rate_interval]))",
                    CARD_NAME,
                ),
                width=8,
            ),
            graph(
                "ECC errors",
                COUNT,
                Query(
                    "sum by (node, gpu_index, type) "
                    f"(increase({of_card('ecc_errors_total')}[$__rate_interval]))",
                    f"{CARD_NAME} {{{{type}}}}",
                ),
                width=8,
            ),
            graph(
                *("Remapped rows", COUNT),
                Query(of_card("remapped_rows"), f"{CARD_NAME} {{{{cause}}}}"),
                text="Rows of memory that the card has replaced after errors.",
                width=8,
            ),
            graph(
                "Processes of no container",
                COUNT,
                Query(
                    f"sum by (node, gpu_index, action) ({of_card('non_tenant_processes')})",
                    f"{CARD_NAME} {{{{action}}}}",
                ),
                width=8,
            ),
            graph(
                *("Accounting drift", BYTES),
                Query(f"abs({of_card('accounting_drift_bytes')})", CARD_NAME),
                text="Difference between the accounting of the containers and the driver.",
                width=8,
            ),
        ),
    ),
)
