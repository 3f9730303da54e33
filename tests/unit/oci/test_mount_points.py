# SPDX-License-Identifier: Apache-2.0
"""No mount of gpushare's is placed in a volume, whatever an engine has mounted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.oci import cdi, container, driver_files, mount_points
from gpushare.oci.container import ContainerEdits, Filters, HostFiles
from gpushare.oci.edits import Edits
from gpushare.oci.elf import platform_of
from gpushare.oci.mount_points import OURS, PRIVATE, CoveredPath, PlacedEdits
from gpushare.oci.rootfs import Rootfs
from gpushare.oci.spec import Spec
from tests.unit.oci.examples import LIBRARIES, cdi_document

PLATFORM = platform_of("x86_64")
DRIVER = driver_files.from_cdi(cdi.from_document(cdi_document()))
HOST = HostFiles(DRIVER, Filters("/g/libcuda.so.1", "/g/libnvidia-ml.so.1"), PLATFORM)
PATHS = (
    *("/", "/opt", "/opt/gpushare", PRIVATE, "/opt/gpushare/tenant", "/usr", "/usr/lib", LIBRARIES),
    *("/lib", "/usr/lib64", "/usr/bin", "/usr/bin/nvidia-smi", f"{LIBRARIES}/libcuda.so.1", "/etc"),
    *("/etc/ld.so.cache", "/libraries", "/libraries/../../../opt", "/usr/local", "/data"),
)
OPTIONS = (["rbind"], ["bind", "ro"], ["rbind", "rshared"])


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rootfs]:
    root = tmp_path_factory.mktemp("image")
    for folder in (LIBRARIES[1:], "usr/lib64", "usr/bin", "etc", "usr/local"):
        (root / folder).mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    (root / "libraries").symlink_to(f"..{LIBRARIES}")
    (root / "usr/lib64/ld-linux-x86-64.so.2").write_text("the loader")
    (root / LIBRARIES[1:] / "libc.so.6").write_text("libc")
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    yield Rootfs(fd)
    os.close(fd)


def bind(destination: str, *options: str) -> dict[str, Any]:
    found = list(options) or ["rbind"]
    return {"destination": destination, "type": "bind", "source": "/srv", "options": found}


def tmpfs(destination: str) -> dict[str, Any]:
    return {"destination": destination, "type": "tmpfs", "source": "tmpfs"}


def wanted(rootfs: Rootfs) -> ContainerEdits:
    return container.shared(HOST, [("0",)], rootfs=rootfs, hooks=(), tenant_directory="/run/t")


def placed(rootfs: Rootfs, *mounts: dict[str, Any]) -> PlacedEdits:
    return mount_points.place(wanted(rootfs), Spec({"mounts": list(mounts)}), rootfs, DRIVER)


def with_cache(found: PlacedEdits, rootfs: Rootfs, keep: Path) -> Edits:
    merged = mount_points.merged_cache(found, rootfs, PLATFORM)
    return mount_points.with_cache(found, merged, rootfs, keep)


def assert_outside(rootfs: Rootfs, found: PlacedEdits) -> None:
    """Each mount point is in the layer, in an empty file system, or in a mount of ours."""
    ours: list[str] = []
    for mount in found.wanted.edits.mounts:
        path = rootfs.resolve(mount.destination)
        in_ours = any(path.startswith(f"{parent}/") for parent in ours)
        top = mount_points.top_mount(found.engines, path)
        assert in_ours or top is None or top.is_fresh, (path, top)
        ours.append(path)


BINDS = st.builds(
    lambda path, options: bind(path, *options), st.sampled_from(PATHS), st.sampled_from(OPTIONS)
)
MOUNTS = st.lists(BINDS | st.builds(tmpfs, st.sampled_from(PATHS)), max_size=4)


@given(MOUNTS)
def test_no_mount_is_placed_in_a_volume(image: Rootfs, mounts: list[dict[str, Any]]) -> None:
    with contextlib.suppress(CoveredPath):
        assert_outside(image, placed(image, *mounts))


def test_a_container_without_volumes_has_all_its_names(image: Rootfs) -> None:
    found = placed(image, tmpfs("/dev"))
    assert (found.volume, found.notes) == ("", ())
    assert {mount.source for mount in found.wanted.edits.mounts} == {
        "tmpfs",
        *(mount.source for mount in wanted(image).edits.mounts),
    }


def test_the_loaders_cache_names_the_private_directory(image: Rootfs, tmp_path: Path) -> None:
    """Also where an earlier start left links in the layer, which the volume covers."""
    placed(image)
    found = placed(image, bind("/libraries"))
    assert found.volume == LIBRARIES
    assert {Path(entry.path).parent for entry in found.wanted.cache} == {Path(PRIVATE)}
    edits = with_cache(found, image, tmp_path)
    assert edits == found.wanted.edits  # the cache was replaced in the layer
    with pytest.raises(CoveredPath, match=f"at {LIBRARIES} covers the loader's directory"):
        with_cache(placed(image, bind("/libraries"), bind("/etc")), image, tmp_path)


def test_a_file_that_a_volume_covers_is_noted(image: Rootfs) -> None:
    found = placed(image, bind("/usr/bin"))
    assert found.notes == ("not mounted: /usr/bin/nvidia-smi: a volume covers it",)


def test_files_of_the_image_in_our_directory_stay_visible(tmp_path: Path) -> None:
    for name, tmpfs_at in (("app", PRIVATE), ("driver", OURS)):
        root = tmp_path / name
        (root / "opt/gpushare" / name).mkdir(parents=True)
        fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
        try:
            mounts = placed(Rootfs(fd)).wanted.edits.mounts
        finally:
            os.close(fd)
        assert [mount.destination for mount in mounts if mount.type == "tmpfs"] == [tmpfs_at]


def test_a_mount_of_the_engine_in_our_directory_stays_visible(image: Rootfs) -> None:
    found = placed(image, bind("/opt/gpushare/data"))
    assert found.wanted.edits.mounts[0].destination == PRIVATE
    assert placed(image, tmpfs("/opt")).wanted.edits.mounts[0].destination == OURS


@pytest.mark.parametrize("path", ["/", "/opt", "/opt/gpushare", "/opt/gpushare/driver"])
def test_a_mount_that_cannot_move_names_its_volume(image: Rootfs, path: str) -> None:
    with pytest.raises(CoveredPath, match=f"the volume at {path} covers /opt/gpushare/driver/"):
        placed(image, bind(path))


def test_the_hosts_own_root_gets_no_file_of_ours_among_its_libraries(tmp_path: Path) -> None:
    """A container may have the host's root: what is missing there is not made."""
    fd = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        rootfs = Rootfs(fd)
        found = placed(rootfs)
        edits = with_cache(found, rootfs, tmp_path)
    finally:
        os.close(fd)
    ours = ("/opt/gpushare/", PRIVATE)
    for mount in edits.mounts:
        assert mount.destination.startswith(ours) or Path(mount.destination).exists()
    assert [mount for mount in edits.mounts if mount.destination == f"{PRIVATE}/libcuda.so.1"]


def test_two_names_of_one_library_are_one_mount(tmp_path: Path) -> None:
    root = tmp_path / "image"
    (root / LIBRARIES[1:]).mkdir(parents=True)
    (root / LIBRARIES[1:] / "libc.so.6").write_text("libc")
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        for _ in range(2):  # the second time, the links are there
            mounts = placed(Rootfs(fd)).wanted.edits.mounts
            found = [
                m.destination for m in mounts if m.destination.startswith(f"{PRIVATE}/libcuda")
            ]
            assert found == [f"{PRIVATE}/libcuda.so.1"]
    finally:
        os.close(fd)
    for name in ("libcuda.so", "libcuda.so.1"):
        assert (root / LIBRARIES[1:] / name).readlink() == Path(f"{PRIVATE}/libcuda.so.1")


def test_an_image_whose_opt_is_a_link_gets_the_same_again(tmp_path: Path) -> None:
    root = tmp_path / "image"
    for folder in (LIBRARIES[1:], "data/opt"):
        (root / folder).mkdir(parents=True)
    (root / "opt").symlink_to("data/opt")
    (root / LIBRARIES[1:] / "libc.so.6").write_text("libc")
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        first, second = placed(Rootfs(fd)), placed(Rootfs(fd))
    finally:
        os.close(fd)
    names = [{mount.destination for mount in one.wanted.edits.mounts} for one in (first, second)]
    assert f"{PRIVATE}/libcuda.so.1" in names[0]
    assert {name for name in names[0] if name.startswith(PRIVATE)} <= names[1]
    assert not list((root / "data/opt/gpushare").iterdir())
