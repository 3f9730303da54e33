# SPDX-License-Identifier: Apache-2.0
"""The page of the metrics, from the families of gpushare/exporter and the alert rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import yaml

from docs.markdown import table
from gpushare.cli.rules import rules_text
from gpushare.exporter.compat import COMPAT
from gpushare.exporter.exposition import FAMILIES
from gpushare.exporter.family import OF_CARD, OF_CONTAINER, OF_NODE, OF_TENANT, Labels

INTRO: Final = """\
What gpushare-exporter serves at `/metrics`, and `gpushare metrics` prints once
([how to scrape it](../how-to/metrics.md)). Base units: bytes, seconds, and parts of a card from 0
to 1.

A container has its series from the grant on, with 0 before it has called CUDA, and no more at the
first scrape after its end. It is told by `container_id`, which is its engine's; `container`, `pod`
and `namespace` are empty where they are not known. `mode` is shared or exclusive. `gpushare set`
and a name that an engine tells late change a label, and so begin another series.

Counters begin with 0 when gpushared is started (`gpushare_start_time_seconds`), which Prometheus
takes for a reset: nothing is counted twice, and what happened while no gpushared ran is missing.
They never go back otherwise, and end with their container. A figure that nobody knows has no
series; 0 is always known to be 0.

How many series there can be: for each container about 35 a card, containers being at most
`max_shares` a card; for each card about 25; for each node about 180. No label has a value that a
tenant could make up without end: names are the engine's, and gone with the container."""

LEFT_OUT: Final = {
    "launches, graph launches, throttled launches": """\
A launch through an open gate is not counted: that is what makes it free
([why](../explanation/compute-shares.md)). What is counted, pieces of work of a metered process,
ends with the process.""",
    "the time of the last launch": """\
For the same reason; `gpushare_container_last_active_timestamp_seconds` is when the driver or the
gate last saw work, to a quarter of a second.""",
    "a histogram of waits at the gate": """\
A container's pages have the sum of the waits, not each one;
`gpushare_container_throttled_seconds_total` is that.""",
    "allocations denied as card-full or stale-grant": """\
The interposer refuses for the quota, and counts that (over-limit). What the driver refuses passes
through; gpushared hears of it as the event `memory-lacking`.""",
    "the interposer's baseline in gpushare_build_info": """\
The libraries in a container are those of the gpushare that started it, so a node may have several;
their versions are in no page yet.""",
}


def metrics() -> Iterator[str]:
    """Yield the page."""
    yield from INTRO.splitlines()
    yield ""
    yield "Labels by their name here:"
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
    yield "## Others' names"
    yield ""
    yield "`gpushare-exporter --compat=hami,dcgm,gpu-manager` (or some of them) adds these, in the"
    yield "units that they have there. Where such an exporter runs as well, leave its name out: a"
    yield "figure that is there twice is counted twice."
    yield ""
    yield from table(
        ("", "name", "labels", "meaning"),
        (
            (
                who,
                f"`{family.name}`",
                ", ".join(f"`{label}`" for label in family.labels),
                family.help,
            )
            for who, families in COMPAT.items()
            for family in families
        ),
    )
    yield "## What there is no family of"
    yield ""
    yield "A figure that nobody has is not made up:"
    yield ""
    rows = ((name, " ".join(why.split())) for name, why in LEFT_OUT.items())
    yield from table(("asked for elsewhere", "why not here"), rows)
    yield "## Alert rules"
    yield ""
    yield "`gpushare rules export` prints them; `for` is how long it must be so."
    yield ""
    yield from table(("alert", "severity", "for", "where"), _rules())


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


def _rules() -> Iterator[tuple[str, str, str, str]]:
    for group in yaml.safe_load(rules_text())["groups"]:
        for rule in group["rules"]:
            expression = " ".join(rule["expr"].split())
            yield (
                rule["alert"],
                rule["labels"]["severity"],
                rule.get("for", ""),
                f"`{expression}`",
            )
