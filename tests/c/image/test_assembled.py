# SPDX-License-Identifier: Apache-2.0
"""What is read of images that NVIDIA's assembler made."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PTXAS = Path(sysconfig.get_path("purelib")) / "nvidia" / "cuda_nvcc" / "bin" / "ptxas"
SOURCE = """
.version 8.0
.target sm_90
.address_size 64
.visible .global .align 4 .b8 table[4000];
.global .align 4 .b8 filled[12] = {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0};
.const .align 4 .b8 factors[400];
.global .attribute(.managed) .align 8 .b8 both[616];
.visible .entry k(.param .u64 to)
{
    .reg .u64 %to;
    .reg .f32 %value, %other;
    ld.param.u64 %to, [to];
    ld.global.f32 %value, [table];
    ld.const.f32 %other, [factors];
    add.f32 %value, %value, %other;
    ld.global.f32 %other, [filled];
    add.f32 %value, %value, %other;
    ld.global.f32 %other, [both];
    add.f32 %value, %value, %other;
    st.global.f32 [%to], %value;
    ret;
}
"""

Measure = Callable[[Path], list[int]]


@pytest.fixture(scope="module")
def measure(tmp_path_factory: pytest.TempPathFactory) -> Measure:
    """Read an image; return the bytes of globals, managed memory, constants and code."""
    program = tmp_path_factory.mktemp("measure") / "measure"
    compiler = shutil.which("gcc") or pytest.fail("gcc is not installed: run ./dev setup")
    readers = [str(path) for path in (ROOT / "libhook" / "image").glob("*.c")]
    include = ("-I", ROOT / "libhook", "-I", ROOT / "libhook" / "include")
    flags = ("-std=gnu11", "-D_GNU_SOURCE", "-g", "-fsanitize=address,undefined")
    source = Path(__file__).with_name("measure.c")
    subprocess.run([compiler, *flags, *include, "-o", program, source, *readers], check=True)

    def run(image: Path) -> list[int]:
        done = subprocess.run(
            [program, image, "90"], capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, "")
        return [int(word) for word in done.stdout.split()]

    return run


@pytest.mark.needs("clients")  # ptxas is one of them
def test_a_cubin_declares_the_variables_of_its_source(measure: Measure, tmp_path: Path) -> None:
    source = tmp_path / "k.ptx"
    source.write_text(SOURCE)
    cubin = tmp_path / "k.cubin"
    subprocess.run([PTXAS, "-arch=sm_90", "-o", cubin, source], check=True)
    globals_, managed, constants, code = measure(cubin)
    wanted, padding = 4000 + 12, 16  # variables are aligned within their sections
    assert wanted <= globals_ <= wanted + padding
    assert managed == 616
    assert constants >= 400
    assert code > 0
    assert measure(source) == [wanted, managed, 400, 0]
