# SPDX-License-Identifier: Apache-2.0
"""The libraries as files: what they export and need."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from gpushare import simulator

ROOT = Path(__file__).parents[3]
TABLES = {"libcuda.so.1": "cuda.inc", "libnvidia-ml.so.1": "nvml.inc"}


def _table(library: str) -> set[str]:
    text = (ROOT / "libhook" / "table" / TABLES[library]).read_text()
    return set(re.findall(r"^(?:CUDA|NVML)_SYMBOL\((\w+)", text, re.MULTILINE))


def _exported(library: str) -> dict[str, int]:
    """Return the exported symbols and their addresses."""
    path = simulator.libraries() / library
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", str(path)], capture_output=True, text=True, check=True
    )
    rows = (line.split() for line in listed.stdout.splitlines())
    return {name: int(address, 16) for address, kind, name in rows if kind in "TtWw"}


@pytest.mark.parametrize("library", TABLES)
def test_every_symbol_of_the_headers_is_exported_and_no_other(library: str) -> None:
    assert set(_exported(library)) == _table(library)


def test_a_per_thread_function_is_not_its_legacy_one_by_another_name() -> None:
    exported = _exported("libcuda.so.1")
    pairs = [name for name in exported if name.endswith(("_ptsz", "_ptds"))]
    assert len(pairs) > 80
    for name in pairs:
        assert exported[name] != exported.get(name[: -len("_ptsz")])


@pytest.mark.parametrize("library", TABLES)
def test_a_library_binds_its_own_names_first_and_identifies_itself(library: str) -> None:
    path = simulator.libraries() / library
    dynamic = subprocess.run(
        ["readelf", "--dynamic", str(path)], capture_output=True, text=True, check=True
    ).stdout
    assert re.search(r"\(FLAGS\).*SYMBOLIC|\(SYMBOLIC\)", dynamic)
    assert re.search(rf"\(SONAME\).*\[{re.escape(library)}\]", dynamic)
