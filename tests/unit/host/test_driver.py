# SPDX-License-Identifier: Apache-2.0
"""What is found of the driver on hosts as packagers leave them, and the CDI spec that says it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpushare.host import driver
from gpushare.host.driver import DriverMissing, files
from gpushare.oci import cdi, ldcache
from gpushare.oci.driver_files import from_cdi
from gpushare.oci.elf import this_platform
from tests.unit.host import elf
from tests.unit.host.layouts import (
    DEBIAN,
    LAYOUTS,
    UUIDS,
    Host,
    container_optimized,
    debian,
    run_installer,
    wsl2,
)

HERE = Path(__file__).parent


def sources(spec: dict[str, Any]) -> list[str]:
    return [mount["hostPath"] for mount in spec["containerEdits"]["mounts"]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_spec_of_a_packagers_driver_is_as_recorded(layout: str, tmp_path: Path) -> None:
    LAYOUTS[layout](tmp_path)
    recorded = json.loads((HERE / "golden" / f"{layout}.json").read_text())
    assert driver.find(tmp_path).cdi() == recorded


@pytest.mark.parametrize("layout", LAYOUTS)
def test_engines_may_read_the_spec(layout: str, tmp_path: Path) -> None:
    LAYOUTS[layout](tmp_path)
    schema = json.loads((HERE / "cdi.schema.json").read_text())
    jsonschema.validate(driver.find(tmp_path).cdi(), schema)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gpushared_finds_both_libraries_in_it(layout: str, tmp_path: Path) -> None:
    LAYOUTS[layout](tmp_path)
    spec = driver.find(tmp_path).cdi()
    found = from_cdi(cdi.from_document(spec))
    # Where the loader of the host's own distribution looks, under the name that programs ask for.
    assert found.cuda.container_path in {"/usr/lib64/libcuda.so.1", f"{DEBIAN}/libcuda.so.1"}
    assert found.nvml.directory == found.cuda.directory
    assert {found.cuda.host_path, found.nvml.host_path} <= set(sources(spec))


def test_a_32_bit_library_is_not_the_drivers(tmp_path: Path) -> None:
    found = driver.find(run_installer(tmp_path).root)
    assert not [path for path in found.libraries if "lib32" in str(path)]


def test_a_host_with_32_bit_libraries_alone_has_no_driver(tmp_path: Path) -> None:
    host = Host(tmp_path, "580.95.05")
    host.write(f"{DEBIAN}/libcuda.so.580.95.05", elf.library_of_32_bit())
    with pytest.raises(DriverMissing):
        driver.find(tmp_path)


def test_of_several_drivers_it_is_the_one_that_the_kernel_runs(tmp_path: Path) -> None:
    """ldconfig on a cuda-compat folder makes another version what the loader finds first."""
    host = debian(tmp_path)
    host.write(f"{DEBIAN}/libcuda.so.590.10.01", elf.library("libcuda.so.1"))
    (tmp_path / f"{DEBIAN}/libcuda.so.1".lstrip("/")).unlink()
    host.link(f"{DEBIAN}/libcuda.so.1", "libcuda.so.590.10.01")
    assert driver.find(tmp_path).version == "550.163.01"


def test_the_kernels_version_is_read_of_both_kinds_of_module(tmp_path: Path) -> None:
    host = container_optimized(tmp_path)
    assert driver.kernel_version(tmp_path) == host.version
    host.write(
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build\n",
    )
    assert driver.kernel_version(tmp_path) == "570.86.10"


def test_the_majors_are_those_of_this_boot(tmp_path: Path) -> None:
    host = debian(tmp_path)
    host.write("proc/devices", "Character devices:\n195 nvidia\n241 nvidia-uvm\n")
    nodes = cdi.from_document(driver.find(tmp_path).cdi()).edits.nodes
    assert {node.path: node.major for node in nodes}["/dev/nvidia-uvm"] == 241


def test_imex_channels_are_a_kind_of_their_own(tmp_path: Path) -> None:
    host = debian(tmp_path)
    assert driver.find(tmp_path).channels_cdi() is None
    host.write("proc/devices", "Character devices:\n195 nvidia\n234 nvidia-caps-imex-channels\n")
    host.write("dev/nvidia-caps-imex-channels/channel0")
    host.write("dev/nvidia1")
    spec = driver.find(tmp_path).channels_cdi()
    assert spec is not None
    jsonschema.validate(spec, json.loads((HERE / "cdi.schema.json").read_text()))
    [device] = spec["devices"]
    assert (spec["kind"], device["name"]) == ("nvidia.com/imex-channel", "0")


def test_the_capabilities_of_a_file_are_reported(tmp_path: Path) -> None:
    parts = driver.find(run_installer(tmp_path).root).parts()
    assert parts["video"] == 3  # encode, cuvid, vdpau
    assert parts["ngx"] == 1
    assert parts["other"] == 3  # two firmwares, the socket of persistenced


def test_wsl_without_a_driver_of_windows_says_so(tmp_path: Path) -> None:
    host = wsl2(tmp_path)
    for name in ("libcuda.so", "libcuda.so.1", "libcuda.so.1.1"):
        (host.root / f"usr/lib/wsl/lib/{name}").unlink()
    with pytest.raises(DriverMissing, match="for Windows"):
        driver.find(tmp_path)


def test_a_jetson_is_refused_with_the_reason(tmp_path: Path) -> None:
    Host(tmp_path, "").write(f"{DEBIAN}/tegra/libcuda.so.1.1", elf.library("libcuda.so.1"))
    with pytest.raises(DriverMissing, match="Jetson"):
        driver.find(tmp_path)


def test_no_driver_says_how_to_try_without(tmp_path: Path) -> None:
    with pytest.raises(DriverMissing, match="--simulate"):
        driver.find(tmp_path)


def test_a_placeholder_is_no_driver(tmp_path: Path) -> None:
    Host(tmp_path, "").write("usr/lib64/libcuda.so.1", "")
    with pytest.raises(DriverMissing, match=r"libcuda\.so\.1 is empty"):
        driver.find(tmp_path)


def test_only_cards_with_a_node_are_this_containers(tmp_path: Path) -> None:
    debian(tmp_path).write("dev/nvidia0")
    assert [card.uuid for card in driver.find(tmp_path).cards] == [UUIDS[1]]


def test_a_driver_without_a_library_says_which(tmp_path: Path) -> None:
    found = driver.find(debian(tmp_path).root)
    assert found.library(driver.CUDA).name == "libcuda.so.550.163.01"
    with pytest.raises(DriverMissing, match=r"no libother\.so\.1"):
        found.library("libother.so.1")


def test_a_spec_of_an_earlier_driver_is_stale(tmp_path: Path) -> None:
    spec = driver.find(debian(tmp_path).root).cdi()
    # Nothing of the folder's machine is on this one.
    assert f"{DEBIAN}/nvidia/current/libcuda.so.550.163.01" in driver.missing_files(spec)
    spec["containerEdits"]["mounts"] = [{"hostPath": "/etc/passwd"}]
    assert driver.missing_files(spec) == []


# --- by which names the loader finds a library ---


def library(root: Path, path: str) -> Path:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(path)
    return place.resolve()


def write_cache(root: Path, *paths: str) -> None:
    flags = this_platform().cache_flags
    entries = tuple(
        ldcache.LdCacheEntry(driver.CUDA.encode(), path.encode(), flags) for path in paths
    )
    other = ldcache.LdCacheEntry(driver.CUDA.encode(), b"/lib32/libcuda.so.1", 3)
    (root / "etc").mkdir()
    (root / "etc/ld.so.cache").write_bytes(ldcache.dump(ldcache.LoaderCache((*entries, other))))


def test_the_order_is_the_loader_s(tmp_path: Path) -> None:
    mine = library(tmp_path, "mine/libcuda.so.1")
    compat = library(tmp_path, "usr/local/cuda/compat/libcuda.so.1")
    default = library(tmp_path, "usr/lib64/libcuda.so.1")
    library(tmp_path, "lib32/libcuda.so.1")
    write_cache(tmp_path, "/usr/local/cuda/compat/libcuda.so.1", "/gone/libcuda.so.1")
    search = f"{tmp_path}/mine:"
    assert files.library_paths(driver.CUDA, root=tmp_path, search=search) == [mine, compat, default]


def test_two_names_of_one_file_are_one(tmp_path: Path) -> None:
    real = library(tmp_path, "usr/lib64/libcuda.so.580.1")
    (tmp_path / "usr/lib64/libcuda.so.1").symlink_to("libcuda.so.580.1")
    (tmp_path / "lib64").symlink_to("usr/lib64")
    assert files.library_paths(driver.CUDA, root=tmp_path) == [real]


def test_a_cache_that_is_none_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(b"no cache")
    assert files.library_paths(driver.CUDA, root=tmp_path) == []
