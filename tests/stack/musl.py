# SPDX-License-Identifier: Apache-2.0
"""The root file system of an image without glibc: musl's loader, and one program made for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from .release import apt

ROOT = Path(__file__).resolve().parents[2] / "build" / "musl"

#: What a program of such an image finds: no driver by the loader, the card's node by its name.
SOURCE = """
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
	printf("%s\\n", dlopen("libcuda.so.1", RTLD_NOW) ? "driver" : "no driver");
	return 0;
}
"""


def musl() -> Path:
    """Return the unpacked root, with /bin/app; fetched and compiled once."""
    root = ROOT / "root"
    if not (ROOT / "done").exists():
        shutil.rmtree(ROOT, ignore_errors=True)
        (ROOT / "archives").mkdir(parents=True)
        apt(["apt-get", "download", "musl"], ROOT / "archives")
        [package] = (ROOT / "archives").glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
        (root / "bin").mkdir(exist_ok=True)
        _compile(root / "bin/app", "-dynamic")
        _compile(root / "bin/static", "-static", "-pie")
        (ROOT / "done").touch()
    return root


def _compile(target: Path, *linked: str) -> None:
    source = ROOT / "app.c"
    source.write_text(SOURCE)
    # As gpushare's own programs are built, static ones position-independent, and from no folder
    # above zig: for each other way it makes a musl of its own, which takes half a minute.
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-musl", "-O2", "-s"]
    subprocess.run([*compiler, *linked, "-o", str(target), str(source)], check=True, cwd=ROOT)
