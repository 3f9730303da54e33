# SPDX-License-Identifier: Apache-2.0
"""A hostile image gets nothing of the host read, written or mounted over."""

from __future__ import annotations

import ctypes.util
import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpushare.oci import elf
from gpushare.oci.image_view import ImageView
from gpushare.oci.rootfs import Rootfs
from tests.unit.oci.test_image_view import LIBRARIES, seen_of, viewed


@pytest.fixture(params=[Rootfs, ImageView])
def rootfs(root: Path, request: pytest.FixtureRequest) -> Iterator[Rootfs]:
    """Return each kind of rootfs: what looks at a name once answers as what asks the kernel."""
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    with closing(request.param(fd)) as rootfs:
        yield rootfs
    os.close(fd)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Return a file of the host, outside the rootfs."""
    path = tmp_path / "secret"
    path.write_text("the host's")
    return path


def test_a_file_swapped_for_a_link_during_a_check_never_leads_out(
    root: Path, rootfs: Rootfs, secret: Path
) -> None:
    (root / "real").write_text("the image's")
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            for target in ("/real", str(secret)):
                (root / "next").symlink_to(target)
                (root / "next").rename(root / "link")

    (root / "link").symlink_to("/real")
    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        found = set()
        for _ in range(2000):
            with closing(type(rootfs)(rootfs.fd)) as fresh:
                found.add(fresh.read("/link", 100))
    finally:
        over.set()
        swapper.join()
    assert found <= {b"the image's", None}


@pytest.fixture
def image(root: Path) -> Path:
    for folder in (LIBRARIES, "usr/lib64", "etc", "bin", "srv"):
        (root / folder).mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    (root / LIBRARIES / "libc.so.6").write_text("libc")
    (root / "etc/ld.so.cache").write_text("a cache")
    (root / "bin/program").write_text("ELF, and more")
    return root


def test_a_known_directory_is_not_read_again(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.utime(image / LIBRARIES, (1, 1))  # as it is unpacked: its content is older than itself
    seen = seen_of(image)

    def read(directory: int) -> list[str]:
        raise AssertionError(directory)

    monkeypatch.setattr("gpushare.oci.image_view.names_in", read)
    with viewed(image) as view:
        assert view.matches(seen)
    time.sleep(0.02)  # the clock of the file system has moved on
    (image / LIBRARIES / "new").touch()
    os.utime(image / LIBRARIES, (1, 1))
    with viewed(image) as view, pytest.raises(AssertionError):
        view.matches(seen)


def test_the_soname_of_libc_is_the_name_programs_ask_for() -> None:
    name = ctypes.util.find_library("c")
    assert name is not None
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    path = next(path for path in loaded if Path(path).name.startswith("libc.so"))
    assert elf.soname(path) == name
