# SPDX-License-Identifier: Apache-2.0
"""The metric names of other exporters, so that their dashboards work. Off by default.

Each metric has the meaning, the labels and the unit (percent, MiB) of the original. What gpushare
does not know is omitted; docs/aliases.py lists those names with the reasons. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from gpushare.exporter.aliases import dcgm, hami

if TYPE_CHECKING:
    from gpushare.exporter.metric_family import Family

#: By the names that --compat takes.
COMPAT: Final[Mapping[str, tuple[Family, ...]]] = {
    "hami": hami.CURRENT,
    "hami-legacy": hami.LEGACY,
    "dcgm": dcgm.FAMILIES,
}
