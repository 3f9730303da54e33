# SPDX-License-Identifier: Apache-2.0
"""No mount of gpushare's is placed in a volume; one mount stands for those of the libraries."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.oci import cdi, container, driver_files
from gpushare.oci.container import (
    OURS,
    PRIVATE,
    ContainerEdits,
    CoveredPath,
    HostFiles,
    LibraryTree,
    PlacedEdits,
)
from gpushare.oci.edits import Edits, Mount
from gpushare.oci.elf import platform_of
from gpushare.oci.loader import Filters
from gpushare.oci.rootfs import Rootfs
from gpushare.oci.spec import Spec
from tests.unit.oci.examples import LIBRARIES, cdi_document, opened

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
    with opened(root) as rootfs:
        yield rootfs


def bind(destination: str, *options: str) -> dict[str, Any]:
    found = list(options) or ["rbind"]
    return {"destination": destination, "type": "bind", "source": "/srv", "options": found}


def tmpfs(destination: str) -> dict[str, Any]:
    return {"destination": destination, "type": "tmpfs", "source": "tmpfs"}


def wanted(rootfs: Rootfs) -> ContainerEdits:
    return container.shared(HOST, [("0",)], rootfs=rootfs, hooks=(), tenant_directory="/run/t")


def placed(rootfs: Rootfs, *mounts: dict[str, Any]) -> PlacedEdits:
    return container.place(wanted(rootfs), Spec({"mounts": list(mounts)}), rootfs, DRIVER)


def with_cache(found: PlacedEdits, rootfs: Rootfs, keep: Path) -> Edits:
    merged = container.merged_cache(found, rootfs, PLATFORM)
    return container.with_cache(found, merged, rootfs, keep)


def assert_outside(rootfs: Rootfs, found: PlacedEdits) -> None:
    """Each mount point is in the layer, in an empty file system, or in a mount of ours."""
    ours: list[str] = []
    for mount in found.wanted.edits.mounts:
        path = rootfs.resolve(mount.destination)
        in_ours = any(path.startswith(f"{parent}/") for parent in ours)
        top = container.top_mount(found.engines, path)
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
        with opened(root) as rootfs:
            mounts = placed(rootfs).wanted.edits.mounts
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
    with opened(Path("/")) as rootfs:
        edits = with_cache(placed(rootfs), rootfs, tmp_path)
    ours = ("/opt/gpushare/", PRIVATE)
    for mount in edits.mounts:
        assert mount.destination.startswith(ours) or Path(mount.destination).exists()
    assert [mount for mount in edits.mounts if mount.destination == f"{PRIVATE}/libcuda.so.1"]


def test_two_names_of_one_library_are_one_mount(tmp_path: Path) -> None:
    root = tmp_path / "image"
    (root / LIBRARIES[1:]).mkdir(parents=True)
    (root / LIBRARIES[1:] / "libc.so.6").write_text("libc")
    with opened(root) as rootfs:
        for _ in range(2):  # the second time, the links are there
            mounts = placed(rootfs).wanted.edits.mounts
            found = [
                m.destination for m in mounts if m.destination.startswith(f"{PRIVATE}/libcuda")
            ]
            assert found == [f"{PRIVATE}/libcuda.so.1"]
    for name in ("libcuda.so", "libcuda.so.1"):
        assert (root / LIBRARIES[1:] / name).readlink() == Path(f"{PRIVATE}/libcuda.so.1")


# --- one mount in place of the single mounts of the libraries ---

TREE = LibraryTree("/run/tree", container.tree_files(DRIVER, HOST.filters))
TENANT = "/opt/gpushare/tenant"


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[Rootfs]:
    """An image with the C library."""
    (tmp_path / LIBRARIES[1:]).mkdir(parents=True)
    (tmp_path / LIBRARIES[1:] / "libc.so.6").write_text("libc")
    with opened(tmp_path) as rootfs:
        yield rootfs


def ours(found: PlacedEdits) -> list[Mount]:
    return [m for m in found.wanted.edits.mounts if f"{m.destination}/".startswith(f"{OURS}/")]


def test_it_stands_for_the_tmpfs_and_all_libraries_in_it(loaded: Rootfs) -> None:
    single = placed(loaded)
    found = container.with_tree(single, TREE)
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


def test_a_container_with_another_library_has_single_mounts(loaded: Rootfs) -> None:
    """A newer cuda-compat of the loaded is its libcuda."""
    single = placed(loaded)
    other = {**TREE.files, "/opt/gpushare/driver/libcuda.so.1": "/other/libcuda.so.1"}
    assert container.with_tree(single, LibraryTree("/run/tree", other)) is single


def test_a_container_with_whole_cards_has_single_mounts(loaded: Rootfs) -> None:
    whole = container.whole(HOST, [("0",)], rootfs=loaded, hooks=())
    single = container.place(whole, Spec({"mounts": []}), loaded, DRIVER)
    assert container.with_tree(single, TREE) is single


def test_files_of_the_image_beside_ours_stay_visible(loaded: Rootfs) -> None:
    loaded.make_directory(f"{OURS}/app")
    single = placed(loaded)
    assert container.with_tree(single, TREE) is single


def test_a_mount_of_the_engine_beside_ours_stays_visible(loaded: Rootfs) -> None:
    data = {"destination": f"{OURS}/data", "type": "bind", "source": "/srv", "options": ["rbind"]}
    single = placed(loaded, data)
    assert container.with_tree(single, TREE) is single
