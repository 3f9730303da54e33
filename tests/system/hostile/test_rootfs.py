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

from .container import GIB, RuntimeContainer
from .witness import Witness

Arrange = Callable[[Path, Path], None]
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


@pytest.mark.parametrize("path", REACHED)
@pytest.mark.parametrize("kind", [absolute, upwards, dangling, looping])
def test_a_link_to_the_host_is_never_followed(
    container: RuntimeContainer, witness: Witness, kind: Callable[..., None], path: str
) -> None:
    kind(container.rootfs, witness.folder, path)
    container.try_to_run()
    witness.assert_untouched()


MAGIC = ("/proc/self/root", "/proc/1/root", "/proc/self/cwd", "/proc/self/fd/3", "/proc/self/fd/7")


@pytest.mark.parametrize("path", ["etc", CACHE, LIBRARIES, f"{LIBRARIES}/libcuda.so.1", "opt"])
def test_a_magic_link_is_never_followed(
    container: RuntimeContainer, witness: Witness, path: str
) -> None:
    """The /proc in question: the daemon's, the runtime's or the container's first process's."""
    for link in MAGIC:
        shown = target(path, witness.folder)
        emptied(container.rootfs / path).symlink_to(link + str(shown) if "root" in link else link)
        container.try_to_run()
        witness.assert_untouched()
        container.remove()


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


@pytest.mark.parametrize("path", [CACHE, f"{LIBRARIES}/libcuda.so.1", "etc", "opt/gpushare/tenant"])
@pytest.mark.parametrize("make", [fifo, unix_socket, endless, sparse, folder])
def test_a_special_file_in_a_files_place_is_neither_opened_nor_waited_for(
    container: RuntimeContainer, make: Callable[[Path], None], path: str
) -> None:
    """Opening a pipe waits for its other end, and a device acts on it.

    The container is only created: its own loader would wait at its own pipe.
    """
    make(emptied(container.rootfs / path))
    container.create()
    used = sum(
        file.lstat().st_blocks for file in container.rootfs.rglob("*") if not file.is_symlink()
    )
    assert used * 512 < 256 << 20, "something of a terabyte was copied"


def test_links_of_ld_so_preload_change_nothing_for_the_host(
    container: RuntimeContainer, witness: Witness
) -> None:
    """The image's own files there are its own; nothing of ours writes them."""
    preload = container.rootfs / "etc/ld.so.preload"
    preload.symlink_to(witness.folder / "etc/ld.so.preload")
    (container.rootfs / "etc/ld.so.conf.d").symlink_to(witness.folder / "etc")
    container.try_to_run()
    witness.assert_untouched()
    assert preload.is_symlink()


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


@pytest.mark.parametrize("path", ["etc", LIBRARIES, "opt", f"{LIBRARIES}/libcuda.so.1"])
def test_a_swap_while_the_container_is_made_leads_nowhere(
    container: RuntimeContainer, witness: Witness, path: str, runtime: str
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
    witness.assert_untouched(but_made=runtime == "runc" and runc_version() < (1, 1, 14))


def runc_version() -> tuple[int, ...]:
    said = subprocess.run([find("runc"), "--version"], check=True, capture_output=True, text=True)
    found = re.search(r"version (\d+)\.(\d+)\.(\d+)", said.stdout)
    assert found is not None
    return tuple(map(int, found.groups()))


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
