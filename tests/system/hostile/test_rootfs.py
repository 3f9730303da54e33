# SPDX-License-Identifier: Apache-2.0
"""An image's file system leads nowhere on the host, however it is arranged or changed meanwhile."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from gpushare.oci.image_view import ImageView
from gpushare.oci.rootfs import Rootfs
from tests.stack.program import find

from .container import RuntimeContainer, RuntimeNamespace
from .witness import Witness

LIBRARIES = "usr/lib/x86_64-linux-gnu"
CACHE = "etc/ld.so.cache"
#: What is reached for in a rootfs when a container gets a share.
REACHED = (
    "etc",
    CACHE,
    "etc/ld.so.preload",
    LIBRARIES,
    f"{LIBRARIES}/libcuda.so.1",
    "usr/lib64",
    "usr/local",
    "opt",
    "opt/gpushare",
    "opt/gpushare/tenant",
    "opt/gpushare/driver",
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


@pytest.mark.gate
def test_a_link_to_the_host_is_never_followed(place: RuntimeNamespace, witness: Witness) -> None:
    for path in REACHED:
        container = RuntimeContainer(place, "runc")
        emptied(container.rootfs / path).symlink_to(target(path, witness.folder))
        container.try_to_run()
        witness.assert_untouched()
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


def test_the_witness_sees_every_access(witness: Witness) -> None:
    (witness.folder / "lib/libcuda.so.1").read_text()
    assert any("opened" in event for event in witness.events())
    (witness.folder / "etc/new").touch()
    with pytest.raises(AssertionError, match="made"):
        witness.assert_untouched()


@pytest.mark.gate
@pytest.mark.parametrize("kind", [Rootfs, ImageView])
def test_a_file_swapped_for_a_link_during_a_check_never_leads_out(
    tmp_path: Path, kind: type[Rootfs]
) -> None:
    root, secret, over = tmp_path / "rootfs", tmp_path / "secret", threading.Event()
    root.mkdir()
    secret.write_text("the host's")
    (root / "real").write_text("the image's")
    (root / "link").symlink_to("/real")

    def swap() -> None:
        while not over.is_set():
            for path in ("/real", str(secret)):
                (root / "next").symlink_to(path)
                (root / "next").rename(root / "link")

    swapper = threading.Thread(target=swap)
    swapper.start()
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        found = set()
        for _ in range(2000):
            with closing(kind(fd)) as fresh:
                found.add(fresh.read("/link", 100))
    finally:
        over.set()
        swapper.join()
        os.close(fd)
    assert found <= {b"the image's", None}
