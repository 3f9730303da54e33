# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's runtime library and cuda-bindings on the driver: the same bare and in a share."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from libhook.table import elf, headers
from tests import compiled
from tests.real_driver import RealDriver
from tools.gpu import programs
from tools.gpu.symbols import cuda_lines

from .conftest import PROBE, Place

NO_DEVICE, INSUFFICIENT_DRIVER = 100, 35
#: cudart asks for it once.
NO_NAME = ""


SHARED, STATIC = "libcudart.so", programs.CUDART_STATIC
#: What nvcc links into a program by default, of one release.
STATIC_OF = programs.PROGRAMS["cudart"].cudart


@pytest.fixture(
    scope="session",
    params=[*((release, SHARED) for release in headers.RELEASES), (STATIC_OF, STATIC)],
    ids="".join,
)
def cudart(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runtime library of each release of CUDA that the tables are made from."""
    release, form = request.param
    folder = tmp_path_factory.mktemp("cudart")
    found = programs.cudart(release, form, folder)
    return found if form == SHARED else with_exports(found, folder)


def with_exports(archive: Path, folder: Path) -> Path:
    """Return a library that has `archive` linked in, and exports what the probe calls of it."""
    called = sorted(set(re.findall(r"\bcuda[A-Z]\w+", PROBE.read_text())))
    text = "".join(
        f'__asm__(".globl static_{name}\\nstatic_{name}: jmp {name}");\n' for name in called
    )
    source = folder / "exports.c"
    source.write_text(text)
    return compiled.compile_c(
        folder / "static.so", "-shared", "-fPIC", source, archive, "-lpthread", "-lrt"
    )


@pytest.mark.thorough  # it downloads
def test_a_runtime_library_is_answered_alike_in_a_share(
    cudart: Path, bare: Place, share: Place
) -> None:
    question = "runtime", str(cudart), [line.symbol for line in cuda_lines()]
    alone = bare.ask(*question)
    assert alone["cudaGetDeviceCount"][0] in {NO_DEVICE, INSUFFICIENT_DRIVER}
    assert share.ask(*question) == alone


@pytest.mark.thorough
def test_what_a_runtime_library_asks_for_is_classified(
    cudart: Path, real_driver: RealDriver, tmp_path: Path
) -> None:
    """Whatever it gets past the interposer library is in the table, with the reason."""
    source = PROBE.with_name("recorder.c")
    real = real_driver.libraries / "libcuda.so.1"
    shared = (*compiled.STRICT, "-shared", "-fPIC", "-Wl,--no-as-needed")
    behind = compiled.compile_c(tmp_path / "behind.so", *shared, source, f"-Wl,-soname,{real}")
    recorder = tmp_path / "lib" / "libcuda.so.1"
    recorder.parent.mkdir()
    forms = ["-DHAS_V2"] if "cuGetProcAddress_v2" in elf.read(real).exported else []
    names = (f'-DREAL="{real}"', *forms, "-Wl,-soname,libcuda.so.1")
    compiled.compile_c(recorder, *shared, *names, source, behind)
    done = Place(recorder.parent).run(
        sys.executable, PROBE, text=json.dumps(["runtime", str(cudart), []])
    )
    assert done.returncode == 0, done.stderr
    is_too_old = json.loads(done.stdout)["cudaGetDeviceCount"][0] == INSUFFICIENT_DRIVER
    asked = set(done.stderr.splitlines())
    assert "cuMemAlloc" in asked or is_too_old
    known = {name for line in cuda_lines() for name in (line.name, line.symbol)}
    assert asked - known <= {NO_NAME, "cuNoSuchThing"}


@pytest.mark.needs("clients")
def test_cuda_bindings_is_answered_alike_in_a_share(bare: Place, share: Place) -> None:
    question = "bindings", [line.symbol for line in cuda_lines()]
    alone = bare.ask(*question)
    assert alone["cuInit"] == [NO_DEVICE]
    assert share.ask(*question) == alone
