# SPDX-License-Identifier: Apache-2.0
"""The page of the metrics, from the families of gpushare/exporter and the alert rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import yaml

from docs.aliases import aliases
from docs.markdown import table
from gpushare.cli.metrics import RULES, read
from gpushare.exporter.exposition import FAMILIES
from gpushare.exporter.metric_family import OF_CARD, OF_CONTAINER, OF_NODE, OF_TENANT, Labels

INTRO: Final = """\
gpushare-exporter serves these metrics at `/metrics`, and `gpushare metrics` prints them once
([how to scrape them](../how-to/metrics.md)). Base units are bytes, seconds, and ratios of a card
from 0 to 1.

**Containers.** A container has series from its allocation until the first scrape after its end.
Their values are 0 until it has called CUDA. `container_id` is the ID of its engine. `container`,
`pod` and `namespace` are empty if they are not known. `mode` is shared or exclusive. `gpushare set`
can change a label, and so can an engine that reports a name late. Both start a new series.

**Counters** start at 0 when gpushared starts (`gpushare_daemon_start_time_seconds`). Prometheus
treats this as a reset: nothing is counted twice, and what happened while no gpushared ran is
missing. Counters never decrease otherwise, and end with their container. An unknown value has no
series; 0 always means a known 0.

**Number of series.** About 45 for each container and card (a card has at most `max_tenants`
containers), about 43 for each card, and about 180 for each node. A tenant cannot create label
values: names come from the engine, and disappear with the container."""

LEFT_OUT: Final = {
    "launches, graph launches, throttled launches": """\
A launch through an open gate is not counted, so that it costs nothing
([details](../explanation/compute-shares.md)). The count of a metered process ends with that
process.""",
    "the time of the last launch": """\
For the same reason. Use `gpushare_container_last_active_timestamp_seconds`: the time at which the
driver or the gate last saw work, accurate to a quarter of a second.""",
    "a histogram of waits at the gate": """\
A container's pages contain only the sum of the waits. Use
`gpushare_container_throttled_seconds_total`.""",
    "encoder and decoder sessions": """\
The driver lists sessions of the encoder only. `gpushare_container_encoder_utilization_ratio` and
`gpushare_container_decoder_utilization_ratio` have the time that a container used either.""",
    "allocations denied as card-full or stale-grant": """\
The interposer counts what it refuses because of the quota (over-quota). Refusals of the driver are
passed through; gpushared logs the event `memory-shortfall-reported`.""",
    "the interposer's baseline in gpushare_build_info": """\
A container keeps the library of the gpushare version that started it, so a node may have several.
No page contains their versions yet.""",
}


def metrics() -> Iterator[str]:
    """Yield the page."""
    yield from INTRO.splitlines()
    yield ""
    yield "Groups of labels:"
    yield ""
    yield from table(
        ("", "labels"),
        (
            (name, ", ".join(f"`{label}`" for label in labels))
            for name, labels in (
                ("node", OF_NODE),
                ("card", OF_CARD),
                ("container", OF_TENANT),
                ("container and card", OF_CONTAINER),
            )
        ),
    )
    yield "## Families"
    yield ""
    yield from table(
        ("name", "type", "labels", "meaning"),
        (
            (f"`{family.name}`", family.kind, _labels(family.labels), family.help)
            for family in FAMILIES
        ),
    )
    yield from aliases()
    yield "## Unavailable metrics"
    yield ""
    yield "gpushare exports only what it can measure. These metrics do not exist:"
    yield ""
    rows = ((name, " ".join(why.split())) for name, why in LEFT_OUT.items())
    yield from table(("metric of other exporters", "reason"), rows)
    yield "## Alert rules"
    yield ""
    yield "`gpushare rules export` prints them. `for` is the time for which the condition must"
    yield "hold."
    yield ""
    yield from table(("alert", "severity", "for", "condition"), _alerts())
    yield "## Recording rules"
    yield ""
    yield "The same file has them, for the dashboards and for queries over days. They are evaluated"
    yield "once a minute."
    yield ""
    yield from table(
        ("series", "expression"),
        ((f"`{rule['record']}`", f"`{rule['expr']}`") for rule in _rules() if "record" in rule),
    )


def _labels(labels: Labels) -> str:
    for name, known in (
        ("container and card", OF_CONTAINER),
        ("container", OF_TENANT),
        ("card", OF_CARD),
        ("node", OF_NODE),
    ):
        if labels[: len(known)] == known:
            return ", ".join([name, *(f"`{label}`" for label in labels[len(known) :])])
    raise ValueError(labels)


def _alerts() -> Iterator[tuple[str, str, str, str]]:
    for rule in _rules():
        if "alert" in rule:
            expression = " ".join(rule["expr"].split())
            severity = rule["labels"]["severity"]
            yield rule["alert"], severity, rule.get("for", ""), f"`{expression}`"


def _rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(read(RULES))["groups"]
    return [rule for group in groups for rule in group["rules"]]
