# SPDX-License-Identifier: Apache-2.0
"""cuda-compat of an image: found, copied once, and the copy used."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gpushare.oci import container, cuda_compat, driver_files
from gpushare.oci.cdi import CdiError
from gpushare.oci.container import HostFiles
from gpushare.oci.cuda_compat import Compat, CompatError
from gpushare.oci.driver_files import DriverFiles
from gpushare.oci.elf import platform_of
from gpushare.oci.loader import Filters
from gpushare.oci.rootfs import Rootfs, RootfsError
from tests.unit.host import elf
from tests.unit.oci.examples import LIBRARIES, VERSION

NEWER = "590.10.01"
FOLDER = "usr/local/cuda/compat"


def package(root: Path, version: str = NEWER, folder: str = FOLDER, padding: bytes = b"") -> Path:
    """Install a compat package as NVIDIA's images have it."""
    place = root / folder
    place.mkdir(parents=True, exist_ok=True)
    for name in ("libcuda", "libnvidia-ptxjitcompiler", "libnvidia-gpucomp"):
        soname = f"{name}.so.{version}" if name.endswith("gpucomp") else f"{name}.so.1"
        (place / f"{name}.so.{version}").write_bytes(elf.library(soname) + padding)
        if not (place / soname).exists():
            (place / soname).symlink_to(f"{name}.so.{version}")
    return place


def found(rootfs: Rootfs) -> Compat:
    package_found = cuda_compat.find(rootfs)
    assert package_found is not None
    return package_found


def test_the_newest_package_is_found_with_its_parts(root: Path, rootfs: Rootfs) -> None:
    assert cuda_compat.find(rootfs) is None
    package(root, "550.54.15", "usr/local/cuda-12.4/compat")
    package(root, NEWER, "usr/local/cuda-13.1/compat")
    newest = found(rootfs)
    assert (newest.version, newest.text) == ((590, 10, 1), NEWER)
    assert sorted(newest.files) == [
        f"libcuda.so.{NEWER}",
        f"libnvidia-gpucomp.so.{NEWER}",
        f"libnvidia-ptxjitcompiler.so.{NEWER}",
    ]


def test_versions_compare_by_number() -> None:
    assert (
        cuda_compat.version("580.9.01")
        < cuda_compat.version("580.65.06")
        < cuda_compat.version("1000.1")
    )


def test_a_package_is_copied_once(root: Path, rootfs: Rootfs, tmp_path: Path) -> None:
    store = tmp_path / "compat"
    package(root)
    first = cuda_compat.keep(rootfs, found(rootfs), store)
    assert first.stat().st_mode & 0o777 == 0o755
    copy = first / f"libcuda.so.{NEWER}"
    assert copy.read_bytes() == (root / FOLDER / copy.name).read_bytes()
    assert copy.stat().st_mode & 0o777 == 0o644
    inode = copy.stat().st_ino
    # Another image with the same package.
    other = root / "usr/local/cuda-13.1/compat"
    package(root, folder="usr/local/cuda-13.1/compat")
    assert cuda_compat.keep(rootfs, found(rootfs), store) == first
    assert other.exists()
    assert copy.stat().st_ino == inode
    assert [path.name for path in store.iterdir()] == [first.name]


def test_a_pipe_or_a_device_is_not_copied(root: Path, rootfs: Rootfs, tmp_path: Path) -> None:
    place = package(root)
    package_found = found(rootfs)
    (place / f"libnvidia-gpucomp.so.{NEWER}").unlink()
    os.mkfifo(place / f"libnvidia-gpucomp.so.{NEWER}")
    with pytest.raises(CompatError, match="no regular file"):
        cuda_compat.keep(rootfs, package_found, tmp_path / "compat")


def test_a_link_to_the_host_is_the_images(root: Path, rootfs: Rootfs, tmp_path: Path) -> None:
    place = package(root)
    target = place / f"libcuda.so.{NEWER}"
    target.unlink()
    target.symlink_to("/etc/passwd")
    with pytest.raises((FileNotFoundError, RootfsError)):
        cuda_compat.keep(rootfs, found(rootfs), tmp_path / "compat")
    assert not (tmp_path / "compat").exists()


def test_a_package_of_endless_size_is_refused_unread(
    root: Path, rootfs: Rootfs, tmp_path: Path
) -> None:
    place = package(root)
    os.truncate(place / f"libcuda.so.{NEWER}", cuda_compat.MOST_BYTES + 1)
    with pytest.raises(CompatError, match="over 1024 MiB"):
        cuda_compat.keep(rootfs, found(rootfs), tmp_path / "compat")


def test_a_full_store_removes_the_oldest_unused_copy(
    root: Path, rootfs: Rootfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "compat"
    copies = []
    for number in range(3):
        package(root, padding=bytes([number]) * 1000)
        copies.append(cuda_compat.keep(rootfs, found(rootfs), store))
        os.utime(copies[-1], (number, number))
    one = sum(path.stat().st_size for path in copies[0].iterdir())
    monkeypatch.setattr(cuda_compat, "STORE_BYTES", 3 * one)
    package(root, padding=b"x" * 1000)
    fourth = cuda_compat.keep(rootfs, found(rootfs), store, used={copies[0].name})
    assert {path.name for path in store.iterdir()} == {
        copies[0].name,
        copies[2].name,
        fourth.name,
    }
    package(root, padding=b"y" * 1000)
    everyone = {path.name for path in store.iterdir()}
    with pytest.raises(CompatError, match="full"):
        cuda_compat.keep(rootfs, found(rootfs), store, used=everyone)


def test_sweeping_removes_old_unused_and_incomplete_caches(
    root: Path, rootfs: Rootfs, tmp_path: Path
) -> None:
    store = tmp_path / "compat"
    kept = []
    for number in range(3):
        package(root, padding=bytes([number]) * 10)
        kept.append(cuda_compat.keep(rootfs, found(rootfs), store))
    half, being_made = store / ".half", store / ".being-made"
    half.mkdir()
    being_made.mkdir()
    old = time.time() - 2 * cuda_compat.KEPT_SECONDS
    for folder in (*kept[:2], half):
        os.utime(folder, (old, old))
    assert set(cuda_compat.sweep(store, {kept[0].name})) == {".half", kept[1].name}
    left = {kept[0].name, kept[2].name, ".being-made"}
    assert {path.name for path in store.iterdir()} == left
    assert cuda_compat.sweep(tmp_path / "none", ()) == []


def test_the_copy_is_the_real_library_and_the_filter_goes_over_the_images(
    root: Path, rootfs: Rootfs, tmp_path: Path, nvidia_driver: DriverFiles
) -> None:
    package(root)
    folder = cuda_compat.keep(rootfs, found(rootfs), tmp_path / "compat")
    newer = driver_files.with_compat(nvidia_driver, folder)
    host = HostFiles(newer, Filters("/filter/libcuda.so.1", "/filter/nvml"), platform_of("x86_64"))
    given = container.shared(
        host, [("0",)], rootfs=rootfs, hooks=(), tenant_directory="/run/tenant"
    )
    mounts = {mount.destination: mount.source for mount in given.edits.mounts}
    assert mounts["/opt/gpushare/driver/libcuda.so.1"] == f"{folder}/libcuda.so.{NEWER}"
    # libcuda loads the parts of its own version, and NVML is the kernel's.
    jit = f"{folder}/libnvidia-ptxjitcompiler.so.{NEWER}"
    assert mounts[f"{LIBRARIES}/libnvidia-ptxjitcompiler.so.1"] == jit
    assert f"{LIBRARIES}/libnvidia-gpucomp.so.{NEWER}" in mounts
    nvml = mounts["/opt/gpushare/driver/libnvidia-ml.so.1"]
    assert nvml == f"{LIBRARIES}/libnvidia-ml.so.{VERSION}"
    assert mounts[f"/{FOLDER}/libcuda.so.{NEWER}"] == "/filter/libcuda.so.1"
    assert mounts[f"/{FOLDER}/libnvidia-ptxjitcompiler.so.{NEWER}"] == jit


def test_whole_cards_have_the_copy_by_every_name(
    root: Path, rootfs: Rootfs, tmp_path: Path, nvidia_driver: DriverFiles
) -> None:
    package(root)
    folder = cuda_compat.keep(rootfs, found(rootfs), tmp_path / "compat")
    newer = driver_files.with_compat(nvidia_driver, folder)
    host = HostFiles(newer, Filters("/f", "/n"), platform_of("x86_64"))
    given = container.whole(host, [("0",)], rootfs=rootfs, hooks=())
    mounts = {mount.destination: mount.source for mount in given.edits.mounts}
    copy = f"{folder}/libcuda.so.{NEWER}"
    assert mounts[f"{LIBRARIES}/libcuda.so.1"] == mounts[f"/{FOLDER}/libcuda.so.{NEWER}"] == copy


def test_a_file_that_is_no_libcuda_is_refused(tmp_path: Path, nvidia_driver: DriverFiles) -> None:
    (tmp_path / f"libcuda.so.{NEWER}").write_bytes(elf.library("libother.so.1"))
    with pytest.raises(CdiError, match=r"no libcuda\.so\.1"):
        driver_files.with_compat(nvidia_driver, tmp_path)
    (tmp_path / f"libcuda.so.{NEWER}").write_bytes(elf.library("../libcuda.so.1"))
    with pytest.raises(CdiError, match="can be looked for"):
        driver_files.with_compat(nvidia_driver, tmp_path)
    (tmp_path / f"libcuda.so.{NEWER}").write_bytes(b"no library")
    with pytest.raises(CdiError, match="ELF"):
        driver_files.with_compat(nvidia_driver, tmp_path)
