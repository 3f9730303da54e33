# SPDX-License-Identifier: Apache-2.0
"""The image of the scenarios: the probe and this host's C library, without any download.

The archive has the layout of `docker save` (manifest.json, a config, one layer), which docker,
containerd (`ctr image import`) and podman all load.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import re
import subprocess
import tarfile
from pathlib import Path

TAG = "gpushare-probe:latest"
PROGRAM = "/usr/bin/gpushare-probe"
#: The parts of the C library that the probe and a driver library need. If this host's glibc has
#: merged one into libc.so.6, its stub is used, or nothing if there is no stub.
LIBRARIES = ("libc.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libm.so.6")
GO_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}


def build(
    probe: Path,
    extra: dict[str, bytes] | None = None,
    *,
    tag: str = TAG,
    command: tuple[str, ...] = (PROGRAM,),
) -> bytes:
    """Return a loadable image archive with `probe` and the default command `command`.

    `extra` maps paths in the image to contents.
    """
    layer = _layer(probe, extra or {})
    config = json.dumps(
        {
            "architecture": GO_ARCHITECTURE.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Cmd": list(command), "Env": ["PATH=/usr/bin"], "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_sha256(layer)}"]},
            "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "gpushare verify"}],
        }
    ).encode()
    config_name = f"{_sha256(config)}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [tag], "Layers": ["layer.tar"]}])
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        _add_file(tar, "layer.tar", layer)
        _add_file(tar, config_name, config)
        _add_file(tar, "manifest.json", manifest.encode())
    return archive.getvalue()


def unpack(root: Path, probe: Path, extra: dict[str, bytes] | None = None) -> None:
    """Write the files of the image to `root`, for a bundle without an engine."""
    with tarfile.open(fileobj=io.BytesIO(_layer(probe, extra or {}))) as tar:
        tar.extractall(root)  # noqa: S202 - our own archive


def loader_files() -> list[Path]:
    """Return the host's ELF loader and C library files, by the paths that its loader uses."""
    listing = subprocess.run(
        ["ldconfig", "-p"],
        check=True,
        capture_output=True,
        text=True,
        env={"PATH": "/sbin:/usr/sbin:/usr/bin"},
    ).stdout
    wanted: dict[str, Path] = {}
    for name, path in re.findall(r"^\s*(\S+) \(libc6[^)]*\) => (\S+)$", listing, re.MULTILINE):
        if (name in LIBRARIES or name.startswith("ld-linux")) and _native(Path(path)):
            wanted.setdefault(name, Path(path))
    interpreter = _interpreter()
    return [interpreter, *(path for path in wanted.values() if path.name != interpreter.name)]


def _interpreter() -> Path:
    """Return the path of the ELF loader in the dynamic programs of this machine."""
    known = {
        "x86_64": "/lib64/ld-linux-x86-64.so.2",
        "aarch64": "/lib/ld-linux-aarch64.so.1",
    }
    return Path(known[platform.machine()])


def _native(library: Path) -> bool:
    """Whether `library` is for this machine's word size (a multilib host lists both)."""
    with library.open("rb") as file:
        return file.read(5) == b"\x7fELF\x02"


def _layer(probe: Path, extra: dict[str, bytes]) -> bytes:
    files = {PROGRAM: probe.read_bytes()}
    for file in loader_files():
        files[str(file)] = file.read_bytes()
    files["/etc/passwd"] = b"root:x:0:0:root:/:/bin/false\nuser:x:1000:1000:user:/:/bin/false\n"
    files.update(extra)
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for directory in ("proc", "sys", "dev", "tmp", "run"):
            _add_directory(tar, directory)
        folders: set[str] = set()
        for path, data in files.items():
            for parent in reversed(Path(path.lstrip("/")).parents):
                if str(parent) not in folders and str(parent) != ".":
                    folders.add(str(parent))
                    _add_directory(tar, str(parent))
            _add_file(tar, path.lstrip("/"), data, mode=0o755)
    return layer.getvalue()


def _add_directory(tar: tarfile.TarFile, name: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type = tarfile.DIRTYPE
    entry.mode = 0o755
    tar.addfile(entry)


def _add_file(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    entry.mode = mode
    tar.addfile(entry, io.BytesIO(data))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
