# SPDX-License-Identifier: Apache-2.0
"""Vendors' keys of a pod's container, as an admission policy recorded them in an annotation.

No container runtime sees the limits and labels of a pod. The policy of gpushare's helm chart copies
each container's keys, word for word, into `gpushare.io/container.NAME.vendor`, and removes the
limits, which no device plugin serves. So there is one translation of them, that of this package.

The text has a line for each key (`limit nvidia.com/gpumem=4096`), and one that says which
container of its pod it is (`position 0`; init containers are counted apart), because some vendors'
annotations go by that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpushare.quota.dialects.parse import Tables
from gpushare.quota.dialects.vendor_key import KeyLocation, VendorValue
from gpushare.quota.errors import BadValue, quoted

#: Where a policy reads keys.
RECORDED: Final[tuple[KeyLocation, ...]] = ("limit", "label", "annotation", "env")
_POSITION: Final = re.compile(r"position ([0-9]{1,4})", re.ASCII)
_FIX: Final = "omit it: the admission policy of gpushare's helm chart writes it"


@dataclass(frozen=True)
class RecordedKeys:
    """The keys of one container by where they were, and its `position` in its pod."""

    texts: Mapping[KeyLocation, Mapping[str, str]]
    position: int | None = None

    def values(self, tables: Tables) -> list[VendorValue]:
        """Return the values that `tables` know."""
        return [value for where, texts in self.texts.items() for value in tables.find(where, texts)]


def recorded_keys(text: str) -> RecordedKeys:
    """Return the keys in the annotation's `text`; BadValue if a line has another form."""
    texts: dict[KeyLocation, dict[str, str]] = {where: {} for where in RECORDED}
    position = None
    for line in text.splitlines():
        if found := _POSITION.fullmatch(line):
            position = int(found[1])
            continue
        where = next((one for one in RECORDED if line.startswith(f"{one} ")), None)
        name, equals, value = line.partition(" ")[2].partition("=")
        if where is None or not equals:
            raise BadValue(f"has the line {quoted(line)}, which is no vendor's key", _FIX)
        texts[where][name] = value
    return RecordedKeys(texts, position)
