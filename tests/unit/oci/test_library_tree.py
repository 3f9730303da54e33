# SPDX-License-Identifier: Apache-2.0
"""One mount in place of the single mounts of the libraries."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.oci import cdi, container, driver_files, mount_points
from gpushare.oci.container import ContainerEdits, Filters, HostFiles
from gpushare.oci.edits import Mount
from gpushare.oci.elf import platform_of
from gpushare.oci.mount_points import OURS, LibraryTree, PlacedEdits
from gpushare.oci.rootfs import Rootfs
from gpushare.oci.spec import Spec
from tests.unit.oci.examples import LIBRARIES, cdi_document

DRIVER = driver_files.from_cdi(cdi.from_document(cdi_document()))
FILTERS = Filters("/g/libcuda.so.1", "/g/libnvidia-ml.so.1")
HOST = HostFiles(DRIVER, FILTERS, platform_of("x86_64"))
TREE = LibraryTree("/run/tree", mount_points.tree_files(DRIVER, FILTERS))
TENANT = "/opt/gpushare/tenant"


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Rootfs]:
    (tmp_path / LIBRARIES[1:]).mkdir(parents=True)
    (tmp_path / LIBRARIES[1:] / "libc.so.6").write_text("libc")
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield Rootfs(fd)
    os.close(fd)


def share(image: Rootfs) -> ContainerEdits:
    return container.shared(HOST, [("0",)], rootfs=image, hooks=(), tenant_directory="/run/t")


def placed(wanted: ContainerEdits, image: Rootfs, *mounts: dict[str, Any]) -> PlacedEdits:
    return mount_points.place(wanted, Spec({"mounts": list(mounts)}), image, DRIVER)


def ours(found: PlacedEdits) -> list[Mount]:
    return [m for m in found.wanted.edits.mounts if f"{m.destination}/".startswith(f"{OURS}/")]


def test_it_stands_for_the_tmpfs_and_all_libraries_in_it(image: Rootfs) -> None:
    single = placed(share(image), image)
    found = mount_points.with_tree(single, TREE)
    assert [(m.source, m.destination) for m in ours(found)] == [
        ("/run/tree", OURS),
        ("/run/t", TENANT),
        ("/run/t/status", f"{TENANT}/status"),
    ]
    assert {"rbind", "rprivate", "ro", "nosuid", "nodev"} <= set(ours(found)[0].options)
    for mount in ours(single)[1:-2]:
        assert TREE.files[mount.destination] == mount.source
    others = [m for m in single.wanted.edits.mounts if m not in ours(single)]
    assert [m for m in found.wanted.edits.mounts if m not in ours(found)] == others
    assert replace(found, wanted=single.wanted) == single  # nothing else has changed


def test_a_container_with_another_library_has_single_mounts(image: Rootfs) -> None:
    """A newer cuda-compat of the image is its libcuda."""
    single = placed(share(image), image)
    other = {**TREE.files, "/opt/gpushare/driver/libcuda.so.1": "/other/libcuda.so.1"}
    assert mount_points.with_tree(single, LibraryTree("/run/tree", other)) is single


def test_a_container_with_whole_cards_has_single_mounts(image: Rootfs) -> None:
    whole = container.whole(HOST, [("0",)], rootfs=image, hooks=())
    single = placed(whole, image)
    assert mount_points.with_tree(single, TREE) is single


def test_files_of_the_image_beside_ours_stay_visible(image: Rootfs) -> None:
    image.make_directory(f"{OURS}/app")
    single = placed(share(image), image)
    assert mount_points.with_tree(single, TREE) is single


def test_a_mount_of_the_engine_beside_ours_stays_visible(image: Rootfs) -> None:
    data = {"destination": f"{OURS}/data", "type": "bind", "source": "/srv", "options": ["rbind"]}
    single = placed(share(image), image, data)
    assert mount_points.with_tree(single, TREE) is single
