# SPDX-License-Identifier: Apache-2.0
"""Names that several dialects know: `nvidia.com/gpu`, NVIDIA_VISIBLE_DEVICES."""

from __future__ import annotations

from collections.abc import Sequence

from gpushare.quota.dialects.row import Word
from gpushare.quota.errors import BadValue
from gpushare.quota.quota import Source


def leave_to_others(by_dialect: dict[str, list[Word]]) -> None:
    """Leave a name that several dialects know to those that ask by another; else to one of them.

    It is the first that asks something by it, else the first: `nvidia.com/gpu: 0.5` is Huawei's.
    """
    owners: dict[Source, list[str]] = {}
    for name, said in by_dialect.items():
        for source in dict.fromkeys(word.source for word in said):
            owners.setdefault(source, []).append(name)
    if all(len(names) == 1 for names in owners.values()):
        return
    asking = {
        name
        for name, said in by_dialect.items()
        if any(word.row.use == "asks" and len(owners[word.source]) == 1 for word in said)
    }
    kept = {
        source: {name for name in names if name in asking}
        or {next((name for name in names if _asks(by_dialect[name], source)), names[0])}
        for source, names in owners.items()
    }
    for name, said in by_dialect.items():
        by_dialect[name] = [word for word in said if name in kept[word.source]]


def _asks(said: Sequence[Word], source: Source) -> bool:
    """Whether one of `said` that is from `source` asks for something, be it for nonsense."""
    return any(word.row.use == "asks" and _says(word) for word in said if word.source == source)


def _says(word: Word) -> bool:
    try:
        return word.row.unit.read(word.text) is not None
    except BadValue:
        return True
