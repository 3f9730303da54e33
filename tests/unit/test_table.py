"""What the committed tables of the driver's symbols hold."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from libhook.table import headers, symbols

TABLE = Path(headers.__file__).parent


class Line(NamedTuple):
    """A CUDA_SYMBOL line of the committed cuda.inc."""

    symbol: str
    name: str
    version: int
    stream: str


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    found = re.findall(r"(?m)^CUDA_SYMBOL\((.*)\)$", (TABLE / "cuda.inc").read_text())
    assert len(found) > 600
    parts = [line.split(", ") for line in found]
    return [Line(symbol, name, int(version), stream) for symbol, name, version, stream in parts]


def test_a_symbol_without_a_version_is_refused_by_name() -> None:
    with pytest.raises(symbols.HeaderError, match=r"cuMemAlloc: symbols .*cuMemAlloc_v2"):
        symbols.match_versions({"cuMemAlloc", "cuMemAlloc_v2"}, {("cuMemAlloc", "", 2000)})


def test_versions_of_a_name_rise_and_so_do_their_revisions(lines: list[Line]) -> None:
    groups: dict[tuple[str, bool], list[Line]] = defaultdict(list)
    for line in lines:
        groups[line.name, line.stream == "PER_THREAD"].append(line)
    for group in groups.values():
        for older, newer in pairwise(group):
            assert older.version < newer.version
            assert symbols.split(older.symbol)[1] < symbols.split(newer.symbol)[1]


def test_the_stream_follows_from_the_symbols_suffix(lines: list[Line]) -> None:
    names_with_per_thread = {line.name for line in lines if line.stream == "PER_THREAD"}
    for line in lines:
        name, _, suffix = symbols.split(line.symbol)
        assert name == line.name
        assert (suffix != "") == (line.stream == "PER_THREAD")
        assert (line.stream == "NONE") == (line.name not in names_with_per_thread)
