# SPDX-License-Identifier: Apache-2.0
"""What was seen of an image is compared with all that an answer depended on."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.unit.oci.test_image_view import LIBRARIES, seen_of, viewed


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
