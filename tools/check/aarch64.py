# SPDX-License-Identifier: Apache-2.0
"""The C parts for aarch64: cross-compiled, looked at, and run under qemu's user emulation.

Grace and Jetson are of that kind. What depends on the processor is the trampolines (assembly), the
order of memory accesses and the simulator's clock. The programs are linked to glibc here: zig would
compile all of musl for this processor first, which takes longer than everything else together.
That they are static where they are shipped is seen in symbols.py.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path
from typing import Final

from . import symbols
from .command import BUILD, ROOT, Failure, run

ARCHITECTURE: Final = "aarch64"
SYSROOT: Final = Path("/usr/aarch64-linux-gnu")  # of Debian's libc6-arm64-cross
QEMU: Final = "qemu-aarch64"
EMULATOR: Final = (QEMU, "-L", str(SYSROOT))
MIB: Final = 1 << 20


def check() -> None:
    """Build for aarch64 with -Werror; every program and library is right, and runs."""
    folder = BUILD / "check" / ARCHITECTURE
    run(
        "cmake",
        "-S",
        ROOT,
        "-B",
        folder,
        "-G",
        "Ninja",
        "--log-level=WARNING",
        f"-DGPUSHARE_ARCHITECTURE={ARCHITECTURE}",
        "-DGPUSHARE_WERROR=ON",
        "-DGPUSHARE_STATIC_TARGET=",
    )
    run("cmake", "--build", folder, "--parallel", "2")
    built = [path for part in ("bin", "lib") for path in (folder / part).rglob("*")]
    binaries = [path for path in built if path.is_file() and symbols.is_elf(path)]
    wrong = [f"{path}: {flaw}" for path in binaries for flaw in _flaws(path)]
    if wrong:
        raise Failure("\n".join(wrong))
    with tempfile.TemporaryDirectory() as place:
        _launch(folder, Path(place))
        _allocate(folder, Path(place))
        _refuse(folder, Path(place))
        _wait(Path(place))


def _flaws(path: Path) -> list[str]:
    header = run("readelf", "--file-header", path)
    return [
        *([] if "AArch64" in header else ["is not for aarch64"]),
        *symbols.flaws_of_dynamic(path),
    ]


def _launch(folder: Path, place: Path) -> None:
    """The launcher becomes the low-level runtime; the hook knows when it was called wrongly."""
    launcher = place / "gpushare-runtime"
    launcher.write_bytes((folder / "bin/gpushare-runtime").read_bytes())
    launcher.chmod(0o755)
    conf = "runtime = /bin/echo\nsocket = /nowhere\n"
    (place / "gpushare-runtime.conf").write_text(conf)
    _expect("--root /x state abc", run(*EMULATOR, launcher, "--root", "/x", "state", "abc"))
    hook = f"{shlex.join(EMULATOR)} {folder}/bin/gpushare-hook 2>&1; echo exit $?"
    _expect("exit 2", run("sh", "-c", hook))


def _allocate(folder: Path, place: Path) -> None:
    """A program allocates of the simulated card, by the simulated driver."""
    run("gpushare", "simulator", "create", place / "card", "--profile", "t4")
    said = _probe(folder, folder / "lib/simulator/libcuda.so.1", place, f"alloc {MIB}", "free")
    _expect(f'"bytes":{MIB},"code":0', said)


def _refuse(folder: Path, place: Path) -> None:
    """The filter loads the driver that it stands before, and gives no GPU without a quota."""
    root = place / "sysroot"
    driver = root / symbols.DRIVERS["lib"].lstrip("/")
    driver.mkdir(parents=True)
    for name in symbols.FILTERS:
        (driver / name).symlink_to(folder / "lib/simulator" / name)
    (root / "lib").symlink_to(SYSROOT / "lib")
    said = _probe(folder, folder / "lib/libcuda.so.1", place, root=root)
    _expect("the quota of this container is unknown", said)


def _wait(place: Path) -> None:
    """A call of an evicted tenant waits, and keeps its arguments."""
    sources = ("tests/c/interposer/test_evicted.c", "libhook/cuda/evicted.c")
    folders = ("libhook", "libhook/include", "tests/c/simulator")
    program = place / "evicted"
    run(
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-target",
        f"{ARCHITECTURE}-linux-gnu",
        "-std=gnu11",
        "-D_GNU_SOURCE",
        "-O2",
        "-o",
        program,
        ROOT / "libhook/share/futex.c",
        *(ROOT / source for source in sources),
        *(f"-I{ROOT / folder}" for folder in folders),
    )
    _expect("every argument has arrived", run(*EMULATOR, program))


def _probe(folder: Path, library: Path, place: Path, *words: str, root: Path = SYSROOT) -> str:
    """Return what the probe says on both streams, whatever its exit status."""
    if not (SYSROOT / "lib").is_dir():
        raise Failure(f"{SYSROOT} is missing (libc6-arm64-cross): ./dev setup brings it")
    # The simulator reserves 1 TiB of addresses where it may; qemu keeps a record of each page.
    script = 'ulimit -v 16777216; exec 2>&1; "$@" || echo "exit $?"'
    probe = folder / "lib/gpushare-probe"
    command = [QEMU, "-L", str(root), str(probe), "--library", str(library), *words]
    return run(
        "sh",
        "-c",
        script,
        "probe",
        *command,
        env={"GPUSHARE_SIM_DEVICE": str(place / "card/device")},
    )


def _expect(text: str, said: str) -> None:
    if text not in said:
        raise Failure(f"under {QEMU} there is no {text!r} in\n{said}")
