# SPDX-License-Identifier: Apache-2.0
"""From the names that a container has to the rows of the tables.

A create pays for this: names are looked up in dictionaries that are made once, and what is no
vendor's costs one look.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from gpushare.quota.dialects.row import KIND, Dialect, Row, Where, Word
from gpushare.quota.quota import Source, SourceKind

Found = tuple[Dialect, Row]


@dataclass(frozen=True)
class _Index:
    """The rows of one place: by name, and those with places in their names by their beginning."""

    exact: Mapping[str, tuple[Found, ...]]
    prefixes: tuple[str, ...]
    patterns: tuple[Found, ...]


class Tables:
    """All rows of some dialects, to be looked up by name."""

    def __init__(self, dialects: Collection[Dialect]) -> None:
        self.dialects = tuple(dialects)
        self._by_where: dict[Where, _Index] = {}
        for where in KIND:
            rows = [(one, row) for one in dialects for row in one.rows if row.where == where]
            exact: dict[str, tuple[Found, ...]] = {}
            for one, row in rows:
                if row.pattern is None:
                    exact[row.name] = (*exact.get(row.name, ()), (one, row))
            patterns = tuple((one, row) for one, row in rows if row.pattern is not None)
            prefixes = tuple(dict.fromkeys(row.prefix for _, row in patterns))
            self._by_where[where] = _Index(exact, prefixes, patterns)

    def annotation_globs(self) -> list[str]:
        """Return what an engine has to hand on of a pod's annotations, as path.Match takes it."""
        return sorted(
            {
                f"{row.name.partition('/')[0]}/*" if "/" in row.name else row.name
                for one in self.dialects
                for row in one.rows
                if row.where == "annotation" and (row.gives or row.names_container)
            }
        )

    def find(
        self, where: Where, values: Mapping[str, str], kind: SourceKind | None = None
    ) -> list[Word]:
        """Return the words in `values`, by name; `kind` is what their source is called."""
        index = self._by_where[where]
        said: SourceKind = kind or KIND[where]
        return [
            word
            for name in values
            if name in index.exact or (index.prefixes and name.startswith(index.prefixes))
            for word in _words(index, name, values[name], said)
        ]


def _words(index: _Index, name: str, text: str, kind: SourceKind) -> Iterator[Word]:
    for dialect, row in index.exact.get(name, ()):
        yield Word(dialect, row, Source(kind, name), text)
    for dialect, row in index.patterns:
        match = row.pattern.fullmatch(name) if row.pattern is not None else None
        if match is not None:
            places = match.groupdict()
            card = int(places["card"]) if "card" in places else None
            yield Word(
                dialect,
                row,
                Source(kind, name),
                text,
                card,
                places.get("container", ""),
                places.get("model", ""),
            )
