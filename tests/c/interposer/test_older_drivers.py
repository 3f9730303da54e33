# SPDX-License-Identifier: Apache-2.0
"""Programs that probe what the driver has find under gpushare what they find without it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gpushare.simulator import device_file
from libhook.table import coverage
from tools.gpu.symbols import cuda_lines

from .conftest import T4, SimulatedContainer
from .container import ProgramContainer

#: A driver before cuGetProcAddress_v2, and what tests/c/real_driver has no real one of: one older
#: than the table, and the newest.
VERSIONS = ("11.8", "13.0", "13.5")

# As programs probe: a name by dlsym, and with cuGetProcAddress each name at each version of it.
PROBE = """
import ctypes, json, os, sys
from ctypes import byref, c_int, c_uint64, c_void_p
library = ctypes.CDLL(sys.argv[1])
def address(name):
    try:
        return ctypes.cast(getattr(library, name), c_void_p).value
    except AttributeError:
        return None
symbols, questions, own = json.load(sys.stdin)
addresses = {name: address(name) for name in symbols}
class Info(ctypes.Structure):
    _fields_ = [
        ("file", ctypes.c_char_p), ("base", c_void_p), ("name", ctypes.c_char_p), ("at", c_void_p),
    ]
def name_at(found):
    info = Info()
    assert ctypes.CDLL(None).dladdr(c_void_p(found), byref(info)) and info.at == found
    name, file = info.name.decode(), info.file.decode()
    assert name not in own or file == os.path.join(os.environ["LD_LIBRARY_PATH"], sys.argv[1])
    return name
answers = {}
for form in ("cuGetProcAddress", "cuGetProcAddress_v2"):
    if addresses.get(form):
        for name, version, flags in questions:
            found, status = c_void_p(7), c_int(-1)
            result = getattr(library, form)(
                name.encode(), byref(found), version, c_uint64(flags), byref(status)
            )
            key = f"{form}({name}, {version}, {flags})"
            there = result == 0 and found.value
            answers[key] = [result, name_at(there) if there else found.value, status.value]
print(json.dumps([[name for name in symbols if addresses[name]], answers]))
"""


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def older(
    simulated_container: SimulatedContainer, tmp_path: Path, version: str
) -> ProgramContainer:
    """A container on a machine whose driver is of that CUDA version."""
    profile = json.loads(T4.read_text()) | {"cuda_version": version}
    path = tmp_path / "older.json"
    path.write_text(json.dumps(profile))
    return simulated_container(1, [0], path)


def bare(container: ProgramContainer) -> ProgramContainer:
    return ProgramContainer(device_file.libraries(), container.tenant, container.env)


def probe(container: ProgramContainer, library: str) -> tuple[list[str], dict[str, object]]:
    symbols = [name for name in coverage.exported() if name.startswith(library[3:5])]
    lines = cuda_lines() if library == "libcuda.so.1" else []
    newest = max((line.version for line in lines), default=0)
    versions = {(line.name, version) for line in lines for version in (line.version, newest)}
    questions = [(*each, flags) for each in sorted(versions) for flags in (0, 1, 2)]
    entries = coverage.assign(coverage.read(coverage.SOURCE.read_text()), coverage.exported())
    own = [symbol for symbol, entry in entries.items() if not entry.passes]
    process = container.start(sys.executable, "-c", PROBE, library)
    out, error = process.communicate(json.dumps([symbols, questions, own]))
    assert process.returncode == 0, error
    found, answers = json.loads(out)
    return found, answers


def test_the_driver_has_only_symbols_of_its_version(older: ProgramContainer, version: str) -> None:
    major, minor = map(int, version.split("."))
    there, _ = probe(bare(older), "libcuda.so.1")
    due = {line.symbol for line in cuda_lines() if line.version <= major * 1000 + minor * 10}
    assert set(there) == due


@pytest.mark.parametrize("library", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_the_same_symbols_and_answers_with_and_without_gpushare(
    library: str, older: ProgramContainer
) -> None:
    there, answers = probe(bare(older), library)
    assert probe(older, library) == (there, answers)
    assert there
    assert bool(answers) == (library == "libcuda.so.1")
