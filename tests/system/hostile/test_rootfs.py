# SPDX-License-Identifier: Apache-2.0
"""An image's file system leads nowhere on the host, however it is arranged or changed meanwhile."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.stack.program import find

from .container import GIB, RuntimeContainer, RuntimeNamespace
from .witness import Witness

Arrange = Callable[[Path, Path, str], None]
LIBRARIES = "usr/lib/x86_64-linux-gnu"
CACHE = "etc/ld.so.cache"
#: What is reached for in a rootfs when a container gets a share.
REACHED = (
    *("etc", CACHE, "etc/ld.so.preload", LIBRARIES, f"{LIBRARIES}/libcuda.so.1", "usr/lib64"),
    *("usr/local", "opt", "opt/gpushare", "opt/gpushare/tenant", "opt/gpushare/driver"),
)
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


def emptied(path: Path) -> Path:
    """Take away what is at `path`, and make the folders above it."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def target(path: str, witness: Path) -> Path:
    """Return what a link at `path` would best lead to: a file for a file, a folder for a folder."""
    name = Path(path).name
    return witness / "etc" / name if "." in name else witness / "lib"


def absolute(root: Path, witness: Path, path: str) -> None:
    emptied(root / path).symlink_to(target(path, witness))


def upwards(root: Path, witness: Path, path: str) -> None:
    emptied(root / path).symlink_to("../" * 40 + str(target(path, witness)).lstrip("/"))


def dangling(root: Path, witness: Path, path: str) -> None:
    emptied(root / path).symlink_to(witness / "lib" / "not-there-yet")


def looping(root: Path, witness: Path, path: str) -> None:
    del witness
    emptied(root / path).symlink_to("/" + path)


def magic(root: Path, witness: Path, path: str) -> None:
    """A link by the /proc of the daemon, of the runtime or of the container's first process."""
    emptied(root / path).symlink_to(f"/proc/self/root{target(path, witness)}")


def descriptor(root: Path, witness: Path, path: str) -> None:
    del witness
    emptied(root / path).symlink_to("/proc/self/fd/7")


def assert_never_followed(
    place: RuntimeNamespace, runtime: str, witness: Witness, kind: Arrange
) -> None:
    for path in REACHED:
        container = RuntimeContainer(place, runtime)
        kind(container.rootfs, witness.folder, path)
        container.try_to_run()
        witness.assert_untouched()
        container.remove()
    place.assert_empty()


@pytest.mark.gate
def test_a_link_to_the_host_is_never_followed(place: RuntimeNamespace, witness: Witness) -> None:
    assert_never_followed(place, "runc", witness, absolute)


@pytest.mark.parametrize("kind", [upwards, dangling, looping, magic, descriptor])
def test_a_link_of_any_kind_is_never_followed(
    place: RuntimeNamespace, witness: Witness, kind: Arrange
) -> None:
    runtime = "crun" if kind in (upwards, magic) else "runc"
    assert_never_followed(place, runtime, witness, kind)


def fifo(path: Path) -> None:
    os.mkfifo(path, 0o666)


def unix_socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o666)


def endless(path: Path) -> None:
    """A device whose reading never ends: /dev/zero, made by the image's layer."""
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [fifo, unix_socket, endless, sparse, folder])
def test_a_special_file_in_a_files_place_is_neither_opened_nor_waited_for(
    place: RuntimeNamespace, make: Callable[[Path], None]
) -> None:
    """Opening a pipe waits for its other end, and a device acts on it.

    The container is only created: its own loader would wait at its own pipe.
    """
    for path in (CACHE, f"{LIBRARIES}/libcuda.so.1", "etc", "opt/gpushare/tenant"):
        container = RuntimeContainer(place, "runc")
        make(emptied(container.rootfs / path))
        container.create()
        files = [file for file in container.rootfs.rglob("*") if not file.is_symlink()]
        assert sum(file.lstat().st_blocks for file in files) * 512 < 256 << 20, "it was copied"
        container.remove()
    place.assert_empty()


@contextmanager
def swapped(path: Path, other: Path) -> Iterator[None]:
    """Exchange two names as fast as the kernel can, while the block lasts."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(path), os.fsencode(other)
    over = threading.Event()
    swaps = 0

    def swap() -> None:
        nonlocal swaps
        while not over.is_set():
            # ctypes lets go of the interpreter for each call
            done = libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE)
            swaps += done == 0

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if path.is_symlink():
            libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE)
    assert swaps > 100, "nothing was raced"


@pytest.mark.gate
@pytest.mark.parametrize("path", ["etc", f"{LIBRARIES}/libcuda.so.1"])
def test_a_swap_while_the_container_is_made_leads_nowhere(
    container: RuntimeContainer, witness: Witness, path: str
) -> None:
    """Checked as a folder of the image, and a link to the host when it is used (CVE-2024-0132).

    runc before 1.1.14 loses the same race without us, and makes an empty file or folder on the host
    where a mount was to go (CVE-2024-45310).
    """
    real = container.rootfs / path
    real.parent.mkdir(parents=True, exist_ok=True)
    if "libcuda" in path:
        real.touch()
    else:
        real.mkdir(exist_ok=True)
    link = container.rootfs / "swap"
    link.symlink_to(target(path, witness.folder))
    with swapped(real, link):
        for _ in range(8):
            container.try_to_run()
            container.remove()
    witness.assert_untouched(but_made=runc_version() < (1, 1, 14))


def runc_version() -> tuple[int, ...]:
    said = subprocess.run([find("runc"), "--version"], check=True, capture_output=True, text=True)
    found = re.search(r"version (\d+)\.(\d+)\.(\d+)", said.stdout)
    assert found is not None
    return tuple(map(int, found.groups()))


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_an_honest_image_starts(container: RuntimeContainer) -> None:
    """Else the others here would prove nothing."""
    with container.started() as tenant:
        assert tenant.ask("info")["total"] == GIB


def test_the_witness_sees_every_access(witness: Witness) -> None:
    (witness.folder / "lib/libcuda.so.1").read_text()
    assert any("opened" in event for event in witness.events())
    (witness.folder / "etc/new").touch()
    with pytest.raises(AssertionError, match="made"):
        witness.assert_untouched()
