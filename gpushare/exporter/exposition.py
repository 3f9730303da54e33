# SPDX-License-Identifier: Apache-2.0
"""The metric families of a snapshot as text, in the format that Prometheus requests.

Both formats are written here: the library prometheus_client takes ten times as long for the same
text, and more memory than all the rest (docs/adr/0020).

- https://prometheus.io/docs/instrumenting/exposition_formats/
- https://prometheus.io/docs/specs/om/open_metrics_spec/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from gpushare.exporter import containers, node, sensors
from gpushare.exporter.aliases import COMPAT
from gpushare.exporter.metric_family import Family, Labels, Snapshot

FAMILIES: Final[tuple[Family, ...]] = (
    *node.NODE_FAMILIES,
    *node.CARD_FAMILIES,
    *sensors.FAMILIES,
    *containers.FAMILIES,
)
PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_WANTS_OPENMETRICS: Final = re.compile(
    r"(?:^|,)\s*application/openmetrics-text\s*(?=[;,]|$)(?![^,]*version=(?!1\.0\.0))"
)


def wants_openmetrics(accept: str) -> bool:
    """Whether a client with this header gets OpenMetrics."""
    return _WANTS_OPENMETRICS.search(accept) is not None


def expose(snapshot: Snapshot, accept: str = "", compat: Sequence[str] = ()) -> tuple[bytes, str]:
    """Return the text and its content type; `accept` is the client's header.

    `compat` are keys of COMPAT, whose families are added to gpushare's own.
    """
    is_open = wants_openmetrics(accept)
    lines: list[str] = []
    for family in (*FAMILIES, *(family for name in compat for family in COMPAT[name])):
        lines += _head(family, is_open=is_open)
        lines += (_histogram if family.kind == "histogram" else _series)(family, snapshot)
    if is_open:
        lines.append("# EOF\n")
    # Bytes that are no UTF-8 have become halves of letters, which cannot be encoded.
    return "".join(lines).encode("utf-8", "replace"), OPENMETRICS if is_open else PLAIN


def _head(family: Family, *, is_open: bool) -> Iterator[str]:
    """Yield the metadata, also of a family without a series."""
    name = family.name
    if is_open and family.kind == "counter":
        name = name.removesuffix("_total")
    yield f"# HELP {name} {_escaped(family.help) if is_open else family.help}\n"
    yield f"# TYPE {name} {family.kind}\n"


def _series(family: Family, snapshot: Snapshot) -> Iterator[str]:
    template = f"{family.name}{_template(family.labels)} %s\n"
    for labels, value in family.samples(snapshot):
        yield template % (*_values(labels), value)


def _histogram(family: Family, snapshot: Snapshot) -> Iterator[str]:
    template = _template(family.labels)
    bucket = f"{family.name}_bucket{_template((*family.labels, 'le'))} %s\n"
    for labels, value in family.samples(snapshot):
        assert isinstance(value, tuple)
        counts, total = value
        values = _values(labels)
        for bound, count in counts:
            yield bucket % (*values, bound, count)
        shown = template % values
        yield f"{family.name}_count{shown} {counts[-1][1]}\n{family.name}_sum{shown} {total}\n"


def _template(labels: Labels) -> str:
    return "{" + ",".join(f'{label}="%s"' for label in labels) + "}"


def _values(labels: Labels) -> Labels:
    text = "".join(labels)
    if "\\" in text or '"' in text or "\n" in text:
        return tuple(map(_escaped, labels))
    return labels


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
