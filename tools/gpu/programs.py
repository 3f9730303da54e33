# SPDX-License-Identifier: Apache-2.0
"""The C programs that are measured with: compiled here, or carried to a machine with no compiler.

`./dev gpu pack` makes all of them, to be carried. A program's file is named by what it was made
from, so that an old one is never taken for a new one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from libhook.table import generate, headers
from tests.c.contract import cases as contract

from . import built
from .report import NotMeasured

ROOT = Path(__file__).resolve().parents[2]
MADE = ROOT / "build" / "gpu"
CUDART_STATIC = "libcudart_static.a"
GLIBC = "x86_64-linux-gnu.2.17"  # older than any that a driver of today runs on


@dataclass(frozen=True)
class ProgramBuild:
    """What one is compiled from; `links` is whether it is linked against a driver's library.

    `cudart` is the release of CUDA whose static runtime library is linked in, as nvcc does.
    """

    sources: tuple[str, ...]
    flags: tuple[str, ...] = ()
    links: bool = False
    cudart: str = ""


CONTRACT = tuple(f"tests/c/contract/{name}" for name in contract.sources())
PROGRAMS = {
    # What an older driver lacks is missed where it is called.
    "contract": ProgramBuild(CONTRACT, ("-pthread", "-Wl,-z,lazy"), links=True),
    "calls": ProgramBuild(("tools/bench/driver.c",), ("-O2",)),
    "waiter": ProgramBuild(("tools/gpu/waiter.c",), ("-O2",), links=True),
    "cudart": ProgramBuild(("tools/gpu/cudart.c",), ("-O2",), cudart="12.9"),
}


def program(name: str) -> Path:
    """Return the program's file; NotMeasured where it was not carried and cannot be compiled."""
    output = MADE / file_name(name)
    if not output.is_file():
        make(name, output, _compiler())
    return output


def file_name(name: str) -> str:
    return f"{name}-{_digest(PROGRAMS[name])}"


def make(name: str, output: Path, compiler: Sequence[str]) -> None:
    """Compile program `name` to `output`; NotMeasured has the compiler's message."""
    made = PROGRAMS[name]
    include = [f"-I{ROOT}/libhook/include", f"-I{ROOT}/libhook"]
    library = [str(built.libraries() / "simulator" / "libcuda.so.1")] if made.links else []
    if made.cudart:
        library += [str(_static_cudart(made.cudart)), "-lpthread", "-lrt"]
    output.parent.mkdir(parents=True, exist_ok=True)
    new = output.with_suffix(".new")
    sources = [str(ROOT / source) for source in made.sources]
    command = [*compiler, "-std=gnu11", "-D_GNU_SOURCE", *include, *made.flags, *sources]
    try:
        done = subprocess.run(
            [*command, *library, "-o", str(new), "-ldl"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise NotMeasured(f"{compiler[0]}: {error.strerror}") from error
    if done.returncode:
        raise NotMeasured(f"{name} cannot be compiled: {done.stderr.strip()[-300:]}")
    new.rename(output)


def cudart(release: str, file: str, folder: Path) -> Path:
    """Return a file of NVIDIA's wheel of the runtime library, in `folder`; DownloadError."""
    generate.CACHE.mkdir(parents=True, exist_ok=True)
    wheel = headers.wheel(headers.RELEASES[release][0], generate.CACHE)
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if f"/{file}" in name)
        return Path(archive.extract(name, folder))


def _static_cudart(release: str) -> Path:
    """Return the library that this machine's nvcc links into programs, or else that of a wheel."""
    nvcc = shutil.which("nvcc")
    own = Path(nvcc or "").resolve().parents[1] / "lib64" / CUDART_STATIC
    try:
        return own if nvcc and own.is_file() else cudart(release, CUDART_STATIC, MADE)
    except headers.DownloadError as error:
        raise NotMeasured(f"there is no {CUDART_STATIC}, of nvcc or from PyPI: {error}") from error


def _digest(made: ProgramBuild) -> str:
    """Return what stands for everything that `made` is compiled from."""
    seen = hashlib.sha256(repr(made).encode())
    headers = (*(ROOT / "libhook" / "include").glob("*.h"), *(ROOT / "libhook/table").glob("*.inc"))
    near = {path for source in made.sources for path in (ROOT / source).parent.glob("*.[hi]*")}
    sources = {ROOT / source for source in made.sources}
    for path in sorted(path for path in {*headers, *near, *sources} if path.is_file()):
        seen.update(path.read_bytes())
    return seen.hexdigest()[:12]


def _compiler() -> list[str]:
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    if importlib.util.find_spec("ziglang"):
        return portable()
    raise NotMeasured("there is no C compiler, and no program in build/gpu was carried here")


def portable() -> list[str]:
    """Return the compiler whose programs run on other machines than this too."""
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", GLIBC]
    return [*zig, "-fno-sanitize=undefined"]  # it is on by default, and ends a program
