# SPDX-License-Identifier: Apache-2.0
"""The keys of other vendors that the chart's MutatingAdmissionPolicy reads.

`python -m packages.vendor_keys`, in `packaging`, writes files/vendor-keys.yaml of the chart from
the tables of gpushare/quota/dialects. What the keys mean is not in it: the policy records their
texts, and gpushared reads those by the same tables. The policy itself needs units only for the
device plugin, whose memory the scheduler counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from os.path import commonprefix
from pathlib import Path
from typing import Any, Final

import yaml

from gpushare.kubernetes.kubelet.memory_units import UNITS
from gpushare.manifest.convert.conversion import SCHEDULERS, VENDOR_RUNTIMES
from gpushare.protocol.kubernetes import RESOURCE
from gpushare.quota.annotations import SCOPE, VENDOR
from gpushare.quota.dialects import TABLES
from gpushare.quota.dialects.nvidia import NVIDIA
from gpushare.quota.dialects.translate import RECORDED
from gpushare.quota.dialects.vendor_key import Dialect, KeyLocation, VendorKey
from gpushare.quota.errors import BadValue

from .vendor_limits import ANY_AMOUNT, vendor_limits

FILE: Final = Path("packaging/helm/gpushare/files/vendor-keys.yaml")
_NAME_MAX: Final = 63  # of an annotation, behind the slash
#: Keys that say how much is requested. A policy alone is no share of any size.
_AMOUNTS: Final = frozenset(
    {"memory", "memory-percent", "memory-limit", "cores", "count", "weight"}
)
_HEAD: Final = """\
# SPDX-License-Identifier: Apache-2.0
# Written by packaging/packages/vendor_keys.py from gpushare/quota/dialects: change that, and run it
# again. A key with `true` requests a share by itself.
"""


def vendor_keys() -> dict[str, Any]:
    """Return what the policy has to know, as the chart's template reads it."""
    return {
        **{where: _keys_at(where) for where in RECORDED},
        "nvidia": sorted(
            {row.name for row in _rows([NVIDIA], "limit") if _is_amount(row) and not row.pattern}
        ),
        "nvidiaPatterns": _either(
            row for row in _rows(TABLES.dialects, "limit") if row.pattern and _is_amount(row)
        ),
        "count": _counting(),
        "memory": _memory(),
        "percent": _limits_of("memory-percent"),
        "cores": _limits_of("cores"),
        "runtimeClasses": sorted(VENDOR_RUNTIMES),
        "schedulers": sorted(SCHEDULERS),
        "resource": {"name": RESOURCE, "unit": UNITS[RESOURCE]},
        "longestName": _NAME_MAX - len(f"{SCOPE}.{VENDOR}"),
        "claims": _claims(),
    }


def text() -> str:
    """Return the text of the file."""
    return _HEAD + yaml.safe_dump(vendor_keys(), sort_keys=False, width=100)


def _rows(dialects: Iterable[Dialect], where: KeyLocation) -> Iterator[VendorKey]:
    for dialect in dialects:
        names = {row.requires for row in dialect.rows} | {row.fraction_of for row in dialect.rows}
        for row in dialect.rows:
            read = row.key or row.requires or row.names_container or row.name in names
            if row.where == where and read:
                yield row


def _is_amount(row: VendorKey) -> bool:
    return row.role == "request" and row.key in _AMOUNTS


def _keys_at(where: KeyLocation) -> dict[str, Any]:
    rows = list(_rows(TABLES.dialects, where))
    requesting = set(_requesting(where))
    plain = [row for row in rows if row.pattern is None]
    return {
        "keys": {name: name in requesting for name in sorted({row.name for row in plain})},
        "prefixes": _prefixes([row.prefix for row in rows if row.pattern]),
        "patterns": _either(row for row in rows if row.pattern),
        "requesting": _either(row for row in rows if row.pattern and row.name in requesting),
    }


def _prefixes(names: list[str]) -> list[str]:
    """Return what the names begin with: one text if they have a beginning in common."""
    common = commonprefix(names)  # noqa: RUF071 - names, no paths
    return [common] if common else sorted(set(names))


def _requesting(where: KeyLocation) -> Iterator[str]:
    """Yield the names that request a share by themselves, but for those of NVIDIA's own plugin.

    What stands beside the limits of its vendor requests nothing that those do not.
    """
    if where == "env":
        return
    nvidia = {row.name for row in _rows([NVIDIA], "limit")}
    for dialect in TABLES.dialects:
        if where == "limit" or not any(_is_amount(row) for row in _rows([dialect], "limit")):
            yield from (
                row.name
                for row in _rows([dialect], where)
                if _is_amount(row) and row.name not in nvidia
            )


def _either(rows: Iterable[VendorKey]) -> str:
    """Return the regular expression of all names of `rows`; RE2 and Python read it alike."""
    patterns = [re.sub(r"\?P<[a-z]+>", "", row.pattern.pattern) for row in rows if row.pattern]
    return f"^({'|'.join(dict.fromkeys(patterns))})$" if patterns else ""


def _limits_of(key: str) -> list[str]:
    rows = [row for row in _rows(TABLES.dialects, "limit") if row.pattern is None]
    counting = {row.name for row in rows if row.key == "count"}
    return sorted({row.name for row in rows if row.key == key} - counting)


def _counting() -> dict[str, list[str]]:
    """Return the keys by which a container requests several cards."""
    return {
        where: sorted(
            {
                row.name
                for row in _rows(TABLES.dialects, where)
                if row.key == "count" and row.pattern is None
            }
        )
        for where in ("limit", "label", "annotation")
    }


def _memory() -> dict[str, int]:
    """Return the bytes that one of each limit of memory stands for."""
    rows = [row for row in _rows(TABLES.dialects, "limit") if row.pattern is None]
    return {row.name: int(row.unit.step) for row in rows if row.key == "memory"}


#: What the name of a ResourceClaimTemplate says (gpushare/kubernetes/templates.py).
_SAID: Final = frozenset({"memory", "memory-percent", "cores", "count"})
#: Whose limits alone say what a container requests. The others need what a policy cannot divide
#: (cards by container), read (variables, names with a pattern) or say (turns without an amount).
_CLAIMING: Final = (
    "nvidia",
    "hami",
    "volcano",
    "alibaba",
    "qgpu",
    "vcuda",
    "elasticgpu",
    "mgpu",
    "huawei",
    "koordinator",
)


def _claims() -> dict[str, Any]:
    """Return what the policy needs to write a request as the name of a template.

    `of`: the vendor of each limit, empty where several know it, which are `shared`. `accepted`: as
    in VendorLimits. `zero`: limits that request nothing with 0, where others must not be 0.
    `summed`: limits that are totals of all cards. `all`: vendors that give all memory to a request
    without memory. `labels`: those of a number of cards, with their vendor. `env`: variables that
    request. `unsaid`: keys that a name does not say, and that change how cards are chosen or
    shared.
    """
    claiming = [one for one in TABLES.dialects if one.name in _CLAIMING]
    # Huawei's nvidia.com/gpu is a part of a card, and never whole.
    rows = [
        (one, row)
        for one in claiming
        for row in one.rows
        if row.where == "limit" and row.key in _SAID and row.pattern is None
        if (one.name, row.name) != ("huawei", "nvidia.com/gpu")
    ]
    of: dict[str, set[str]] = {}
    for dialect, row in rows:
        of.setdefault(row.name, set()).add(dialect.name)
    of.pop("nvidia.com/mps-core")  # its memory is in a variable
    accepted = vendor_limits(strict=False).accepted
    return {
        "of": {name: next(iter(names)) if len(names) == 1 else "" for name, names in of.items()},
        "accepted": {
            name: accepted[name] for name in of if name in accepted and accepted[name] != ANY_AMOUNT
        },
        "shared": ["", *sorted(set().union(*(one for one in of.values() if len(one) > 1)))],
        "zero": sorted(
            row.name for _, row in rows if row.key != "count" and _says_nothing(row, "0")
        ),
        "summed": sorted({row.name for _, row in rows if row.summed}),
        "all": [
            one.name
            for one in claiming
            if any((each.key, each.text) == ("memory-percent", "100") for each in one.assumed)
        ],
        "labels": {
            row.name: one.name
            for one in claiming
            for row in one.rows
            if (row.where, row.key) == ("label", "count")
        },
        "env": sorted(
            {
                row.name
                for one in TABLES.dialects
                for row in one.rows
                if (row.where, row.role) == ("env", "request") and row.pattern is None
            }
        ),
        "unsaid": {
            where: sorted(
                {
                    row.name
                    for one in TABLES.dialects
                    for row in one.rows
                    if row.where == where
                    and row.role in {"request", "option"}
                    and row.key not in {"", *_SAID}
                    and row.pattern is None
                }
            )
            for where in ("limit", "label", "annotation")
        },
    }


def _says_nothing(row: VendorKey, text: str) -> bool:
    """Whether the vendor takes the text, and it requests nothing."""
    try:
        return row.read(text) is None
    except BadValue:
        return False


def main() -> None:
    """Write the file."""
    place = Path(__file__).resolve().parents[2] / FILE
    place.parent.mkdir(exist_ok=True)
    place.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
