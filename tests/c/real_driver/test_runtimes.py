# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's runtime library and cuda-bindings on the driver: the same bare and in a share."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import pytest

from libhook.table import elf, generate, headers
from tests import compiled
from tests.real_driver import RealDriver
from tools.gpu.symbols import cuda_lines

from .conftest import PROBE, Place

NO_DEVICE, INSUFFICIENT_DRIVER = 100, 35
#: cudart asks for it once.
NO_NAME = ""


@pytest.fixture(scope="session", params=headers.RELEASES)
def cudart(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runtime library of each release of CUDA that the tables are made from."""
    generate.CACHE.mkdir(parents=True, exist_ok=True)
    wheel = headers.wheel(headers.RELEASES[request.param][0], generate.CACHE)
    folder = tmp_path_factory.mktemp("cudart")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if "/libcudart.so" in name)
        return Path(archive.extract(name, folder))


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
