# SPDX-License-Identifier: Apache-2.0
"""The metric families of a snapshot as text, in the format that Prometheus requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gpushare.exporter import containers, node
from gpushare.exporter.aliases import COMPAT
from gpushare.exporter.metric_family import Family, Snapshot

FAMILIES: Final[tuple[Family, ...]] = (
    *node.NODE_FAMILIES,
    *node.CARD_FAMILIES,
    *containers.FAMILIES,
)


class _Collected(Collector):
    """One snapshot, for collection by the library."""

    def __init__(self, snapshot: Snapshot, compat: Sequence[str]) -> None:
        self._snapshot = snapshot
        self._families = [*FAMILIES, *(family for name in compat for family in COMPAT[name])]

    def collect(self) -> Iterator[Metric]:
        """Yield every family, also those without a series."""
        for family in self._families:
            yield _metric(family, self._snapshot)


def expose(snapshot: Snapshot, accept: str = "", compat: Sequence[str] = ()) -> tuple[bytes, str]:
    """Return the text and its content type; `accept` is the client's header.

    `compat` are keys of COMPAT, whose families are added to gpushare's own.
    """
    try:
        encode, content_type = choose_encoder(accept)
        return encode(_Collected(snapshot, compat)), content_type
    except (ValueError, TypeError):
        if not accept:
            raise
        return expose(
            snapshot, compat=compat
        )  # it asks for a version, or an escaping, that there is none of


def _metric(family: Family, snapshot: Snapshot) -> Metric:
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for labels, value in family.samples(snapshot):
            assert isinstance(value, tuple)
            histogram.add_metric(labels, *value)
        return histogram
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(family.name, family.help, labels=family.labels)
    for labels, value in family.samples(snapshot):
        assert not isinstance(value, tuple)
        metric.add_metric(labels, value)
    return metric
