# SPDX-License-Identifier: Apache-2.0
"""A hostile image gets nothing of the host read, written or mounted over."""

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpushare.oci.image_view import ImageView
from gpushare.oci.rootfs import Rootfs


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
