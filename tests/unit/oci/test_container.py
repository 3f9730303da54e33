# SPDX-License-Identifier: Apache-2.0
"""What a container with a GPU gets, in the images of several distributions."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from gpushare.oci import cdi, container, driver_files, ldcache, loader
from gpushare.oci.container import ContainerEdits, HostFiles
from gpushare.oci.edits import Mount
from gpushare.oci.elf import platform_of
from gpushare.oci.loader import CacheEntry, Filters
from gpushare.oci.rootfs import Rootfs
from tests.unit.host import elf
from tests.unit.oci.examples import (
    LIBRARIES,
    VERSION,
    cdi_document,
    opened,
)

CUDA = "/usr/local/lib/gpushare/1-abc/lib/libcuda.so.1"
NVML = "/usr/local/lib/gpushare/1-abc/lib/libnvidia-ml.so.1"
TENANT = "/run/gpushare/tenants/4f1c"
PROGRAM = "/usr/local/lib/gpushare/1-abc/bin/gpushare-hook"
HOOK = container.binding_hook(PROGRAM, "/run/g.sock", "4f1c")
HOOKS = (HOOK,)
CARD = [("GPU-0", "0")]
SOURCES = Path(__file__).parents[3]
PLATFORM = platform_of("x86_64")


@pytest.fixture
def host() -> HostFiles:
    found = driver_files.from_cdi(cdi.from_document(cdi_document()))
    return HostFiles(found, Filters(CUDA, NVML), PLATFORM)


@pytest.fixture
def debian(root: Path) -> Path:
    for folder in ("usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/bin", "etc", "usr/local"):
        (root / folder).mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    (root / "lib64").symlink_to("usr/lib64")
    (root / "usr/lib64/ld-linux-x86-64.so.2").write_text("the loader")
    (root / "usr/lib/x86_64-linux-gnu/libc.so.6").write_text("libc")
    return root


def shared(host: HostFiles, rootfs: Rootfs) -> ContainerEdits:
    return container.shared(host, CARD, rootfs=rootfs, hooks=HOOKS, tenant_directory=TENANT)


def sources(wanted: ContainerEdits) -> dict[str, str]:
    """Return destination -> source, as the last mount of a destination makes it."""
    return {mount.destination: mount.source for mount in wanted.edits.mounts}


@pytest.mark.usefixtures("debian")
def test_a_share_in_full(host: HostFiles, rootfs: Rootfs) -> None:
    wanted = shared(host, rootfs)
    real = f"{LIBRARIES}/libcuda.so.{VERSION}"
    assert sources(wanted) == {
        "/opt/gpushare/driver/libcuda.so.1": real,
        "/opt/gpushare/driver/libnvidia-ml.so.1": f"{LIBRARIES}/libnvidia-ml.so.{VERSION}",
        **{
            f"{folder}/{name}": CUDA
            for folder in (LIBRARIES, "/usr/lib64")
            for name in ("libcuda.so.1", "libcuda.so", f"libcuda.so.{VERSION}")
        },
        **{
            f"{folder}/{name}": NVML
            for folder in (LIBRARIES, "/usr/lib64")
            for name in ("libnvidia-ml.so.1", f"libnvidia-ml.so.{VERSION}")
        },
        f"{LIBRARIES}/libnvidia-ptxjitcompiler.so.{VERSION}": (
            f"{LIBRARIES}/libnvidia-ptxjitcompiler.so.{VERSION}"
        ),
        "/usr/bin/nvidia-smi": "/usr/bin/nvidia-smi",
        "/opt/gpushare/tenant": TENANT,
        "/opt/gpushare/tenant/status": f"{TENANT}/status",
    }
    assert [device.path for device in wanted.edits.devices] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia0",
    ]
    assert wanted.edits.hooks == HOOKS
    assert [entry.name for entry in wanted.cache] == [
        "libcuda.so.1",
        "libcuda.so",
        "libnvidia-ml.so.1",
        f"libnvidia-ptxjitcompiler.so.{VERSION}",
    ]
    assert {entry.path.rpartition("/")[0] for entry in wanted.cache} == {LIBRARIES}


@pytest.mark.usefixtures("debian")
def test_every_mount_but_status_is_read_only_and_none_gives_privileges(
    host: HostFiles, rootfs: Rootfs
) -> None:
    for mount in shared(host, rootfs).edits.mounts:
        assert {"nosuid", "nodev"} <= set(mount.options)
        assert {"bind", "rbind"} & set(mount.options)
        assert mount.read_only == (mount.destination != "/opt/gpushare/tenant/status")


def test_the_hook_names_the_tenant_and_inherits_nothing() -> None:
    assert HOOK.entry() == {
        "path": PROGRAM,
        "args": ["gpushare-hook", "createRuntime", "--socket", "/run/g.sock", "--key", "4f1c"],
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        "timeout": 60,
    }


def test_the_hook_gives_up_before_the_runtime_kills_it() -> None:
    text = (SOURCES / "runtime/client.h").read_text()
    found = re.findall(
        r"^#define (CLIENT_ACK|CLIENT_FINAL|CLIENT_START)_MS ([0-9]+)", text, re.MULTILINE
    )
    limits = {name: int(milliseconds) / 1000 for name, milliseconds in found}
    waits = limits["CLIENT_START"] + limits["CLIENT_ACK"] + 2 * limits["CLIENT_FINAL"]
    assert HOOK.timeout > waits + 1


@pytest.mark.parametrize(
    ("libc", "folder"),
    [
        ("usr/lib64", "/usr/lib64"),
        ("usr/lib", "/usr/lib64"),  # one folder by two names, as Arch has it
        ("lib/x86_64-linux-gnu", LIBRARIES),  # /usr is not merged
        (None, LIBRARIES),
    ],
)
def test_the_libraries_are_where_the_loader_of_the_image_looks(
    root: Path, host: HostFiles, rootfs: Rootfs, libc: str | None, folder: str
) -> None:
    if libc:
        (root / libc).mkdir(parents=True)
        (root / libc / "libc.so.6").write_text("libc")
    if libc == "usr/lib":
        (root / "usr/lib64").symlink_to("lib")
    wanted = shared(host, rootfs)
    assert {entry.path.rpartition("/")[0] for entry in wanted.cache} == {folder}
    assert sources(wanted)[rootfs.resolve(f"{folder}/libcuda.so.1")] == CUDA
    assert libc != "usr/lib" or "/usr/lib64/libcuda.so.1" not in sources(wanted)


@pytest.mark.parametrize("libc", ["usr/lib64", "usr/lib/x86_64-linux-gnu", "lib64", "nowhere"])
def test_a_restart_gets_the_same_whatever_mount_points_the_first_start_left(
    root: Path, host: HostFiles, rootfs: Rootfs, libc: str
) -> None:
    (root / libc).mkdir(parents=True)
    (root / libc / "libc.so.6").write_text("libc")
    first = shared(host, rootfs)
    for mount in first.edits.mounts:
        place = root / mount.destination[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        if mount.destination == container.TENANT_DIR:
            place.mkdir()
        else:
            place.touch()
    assert shared(host, rootfs) == first


def test_the_filter_goes_over_whatever_the_image_calls_libcuda(
    debian: Path, host: HostFiles, rootfs: Rootfs
) -> None:
    compat = debian / "usr/local/cuda-12.4/compat"
    compat.mkdir(parents=True)
    (debian / "usr/local/cuda").symlink_to("cuda-12.4")
    for name in ("libcuda.so.550.54.15", "libnvidia-ptxjitcompiler.so.550.54.15"):
        (compat / name).write_text("older")
        (compat / name.replace("550.54.15", "1")).symlink_to(name)
    (debian / "usr/lib/x86_64-linux-gnu/libcuda.so.1").symlink_to("/opt/old/libcuda.so.470")
    (debian / "usr/lib/libnvidia-ml.so.1").write_text("older")
    found = sources(shared(host, rootfs))
    there = "/usr/local/cuda-12.4/compat"
    assert found[f"{there}/libcuda.so.550.54.15"] == CUDA
    assert found[f"{there}/libnvidia-ptxjitcompiler.so.550.54.15"] == (
        f"{LIBRARIES}/libnvidia-ptxjitcompiler.so.{VERSION}"
    )
    assert found["/opt/old/libcuda.so.470"] == CUDA
    assert found["/usr/lib/libnvidia-ml.so.1"] == NVML
    assert not any("/cuda/" in destination for destination in found)


def test_the_filter_goes_over_the_folder_that_the_images_cache_names(
    debian: Path, host: HostFiles, rootfs: Rootfs
) -> None:
    (debian / "opt/conda/lib").mkdir(parents=True)
    (debian / "opt/conda/lib/libcuda.so.1").write_text("somebody's")
    cache = ldcache.merge(None, [("libcuda.so.1", "/opt/conda/lib/libcuda.so.1")], 0x303)
    (debian / "etc/ld.so.cache").write_bytes(cache)
    assert sources(shared(host, rootfs))["/opt/conda/lib/libcuda.so.1"] == CUDA


def test_a_hostile_image_chooses_no_mount_source(
    debian: Path, host: HostFiles, rootfs: Rootfs
) -> None:
    folder = debian / "usr/lib/x86_64-linux-gnu"
    (folder / "libcuda.so.1").symlink_to("../../../../../../../etc/shadow")
    (folder / "libcuda.so.999").symlink_to("/proc/self/root/etc/shadow")
    (folder / "libnvidia-ml.so.1").symlink_to(debian.parent / "outside")
    wanted = shared(host, rootfs)
    honest = {CUDA, NVML, TENANT, f"{TENANT}/status", "/usr/bin/nvidia-smi"}
    for mount in wanted.edits.mounts:
        assert mount.source in honest or mount.source.startswith(f"{LIBRARIES}/lib")
        assert ".." not in mount.destination
    assert not (debian.parent / "outside").exists()


@pytest.mark.usefixtures("debian")
def test_whole_cards_get_the_driver_and_no_filter(host: HostFiles, rootfs: Rootfs) -> None:
    wanted = container.whole(host, CARD, rootfs=rootfs, hooks=HOOKS)
    found = sources(wanted)
    assert CUDA not in found.values()
    assert NVML not in found.values()
    assert not any(destination.startswith("/opt/gpushare") for destination in found)
    assert found[f"{LIBRARIES}/libcuda.so.1"] == f"{LIBRARIES}/libcuda.so.{VERSION}"
    assert found[f"{LIBRARIES}/libnvidia-opencl.so.{VERSION}"]
    assert [device.path for device in wanted.edits.devices] == [
        "/dev/nvidiactl",
        "/dev/nvidia-modeset",
        "/dev/nvidia-uvm",
        "/dev/nvidia0",
        "/dev/dri/renderD128",
    ]


def test_the_cache_is_made_and_a_second_time_left_alone(
    debian: Path, host: HostFiles, rootfs: Rootfs, tmp_path: Path
) -> None:
    wanted = shared(host, rootfs)
    assert loader.install_cache(rootfs, wanted.cache, PLATFORM, tmp_path) is None
    made = debian / "etc/ld.so.cache"
    names = [entry.name for entry in ldcache.parse(made.read_bytes()).entries]
    assert names[0] == f"libnvidia-ptxjitcompiler.so.{VERSION}".encode()
    assert b"libcuda.so.1" in names
    inode = made.stat().st_ino
    assert loader.install_cache(rootfs, wanted.cache, PLATFORM, tmp_path) is None
    assert made.stat().st_ino == inode


def test_an_image_without_glibc_gets_no_cache(
    root: Path, host: HostFiles, rootfs: Rootfs, tmp_path: Path
) -> None:
    (root / "etc").mkdir()
    wanted = shared(host, rootfs)
    assert loader.install_cache(rootfs, wanted.cache, PLATFORM, tmp_path) is None
    assert list((root / "etc").iterdir()) == []


@pytest.mark.parametrize("content", [b"not a cache", b"x" * (5 << 20)])
def test_a_cache_that_is_not_understood_is_left_as_it_is(
    debian: Path, host: HostFiles, rootfs: Rootfs, content: bytes
) -> None:
    (debian / "etc/ld.so.cache").write_bytes(content)
    wanted = shared(host, rootfs)
    assert loader.install_cache(rootfs, wanted.cache, PLATFORM, debian) is None
    assert (debian / "etc/ld.so.cache").read_bytes() == content


def read_only(_self: Rootfs, path: str, _data: bytes) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)


def test_in_a_read_only_layer_the_cache_is_a_mount_kept_by_its_content(
    debian: Path,
    host: HostFiles,
    rootfs: Rootfs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Rootfs, "replace", read_only)
    keep = tmp_path / "keep"  # made when it is needed: few images are read-only
    wanted = shared(host, rootfs)
    assert loader.install_cache(rootfs, wanted.cache, PLATFORM, keep) is None
    (debian / "etc/ld.so.cache").write_bytes(ldcache.merge(None, [("a", "/a")], 0x303))
    mount = loader.install_cache(rootfs, wanted.cache, PLATFORM, keep)
    assert isinstance(mount, Mount)
    assert (mount.destination, mount.read_only) == ("/etc/ld.so.cache", True)
    assert {"nosuid", "nodev", "noexec"} <= set(mount.options)
    entries = ldcache.parse(Path(mount.source).read_bytes()).entries
    assert {entry.name for entry in entries} >= {b"a", b"libcuda.so.1"}
    assert loader.install_cache(rootfs, wanted.cache, PLATFORM, keep) == mount
    assert [str(path) for path in keep.iterdir()] == [mount.source]
    assert wanted.with_mount(mount).mounts[-1] == mount


@pytest.mark.usefixtures("debian")
def test_a_full_disk_keeps_no_half_of_a_cache(
    rootfs: Rootfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int, _mode: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Rootfs, "replace", read_only)
    monkeypatch.setattr(os, "fchmod", full)
    Path(tmp_path / "rootfs/etc/ld.so.cache").write_bytes(ldcache.merge(None, [("a", "/a")], 0x303))
    with pytest.raises(OSError, match="No space"):
        loader.install_cache(
            rootfs, (CacheEntry("libcuda.so.1", "/c"),), PLATFORM, tmp_path / "keep"
        )
    assert list((tmp_path / "keep").iterdir()) == []


def test_the_hosts_own_cache_is_never_replaced(
    host: HostFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(_self: Rootfs, path: str, _data: bytes) -> None:
        raise AssertionError(f"the host's {path} was written")

    monkeypatch.setattr(Rootfs, "replace", replace)
    before = Path("/etc/ld.so.cache").read_bytes()
    with opened(Path("/")) as rootfs:
        mount = loader.install_cache(rootfs, shared(host, rootfs).cache, PLATFORM, tmp_path)
    assert mount is not None
    assert mount.destination == "/etc/ld.so.cache"
    assert Path(mount.source).read_bytes() != before


def test_another_machine_has_its_own_names() -> None:
    arm = platform_of("aarch64")
    assert arm.library_directories == ("/usr/lib/aarch64-linux-gnu", "/usr/lib64")
    with pytest.raises(ValueError, match="gpushare does not run on mips: it knows aarch64, x86_64"):
        platform_of("mips")


def graphical() -> HostFiles:
    """A driver of which every capability has a part."""
    document = cdi_document()
    mounts = document["containerEdits"]["mounts"]
    names = ("libnvidia-encode.so.1", "libnvidia-ngx.so.1", "libnvidia-of-tomorrow.so.1")
    paths = [f"{LIBRARIES}/{name}" for name in names]
    paths += ["/etc/OpenCL/vendors/nvidia.icd", "/usr/share/glvnd/egl_vendor.d/10_nvidia.json"]
    mounts += [{"hostPath": path, "containerPath": path} for path in paths]
    found = driver_files.from_cdi(cdi.from_document(document))
    return HostFiles(found, Filters(CUDA, NVML), PLATFORM)


def names(wanted: ContainerEdits) -> set[str]:
    return {Path(mount.destination).name for mount in wanted.edits.mounts}


@pytest.mark.usefixtures("debian")
def test_a_share_gets_only_allowed_capabilities_that_bypass_the_library(rootfs: Rootfs) -> None:
    video = container.shared(
        graphical(),
        CARD,
        rootfs=rootfs,
        hooks=HOOKS,
        tenant_directory=TENANT,
        extra=frozenset({"video"}),
    )
    assert "libnvidia-encode.so.1" in names(video)
    assert not names(video) & {
        "libnvidia-ngx.so.1",
        f"libnvidia-glcore.so.{VERSION}",
        f"libnvidia-opencl.so.{VERSION}",
        "nvidia.icd",
        "libnvidia-of-tomorrow.so.1",
    }
    assert not [device for device in video.edits.devices if "dri" in device.path]


@pytest.mark.usefixtures("debian")
def test_opencl_comes_to_a_share_that_may_have_everything(rootfs: Rootfs) -> None:
    everything = container.shared(
        graphical(),
        CARD,
        rootfs=rootfs,
        hooks=HOOKS,
        tenant_directory=TENANT,
        extra=driver_files.UNINTERPOSED,
    )
    opencl = {f"libnvidia-opencl.so.{VERSION}", "nvidia.icd", "10_nvidia.json"}
    assert opencl <= names(everything)
    assert {"/dev/nvidia-modeset", "/dev/dri/renderD128"} <= {
        device.path for device in everything.edits.devices
    }


@pytest.mark.usefixtures("debian")
def test_an_exclusive_card_gets_the_requested_capabilities(rootfs: Rootfs) -> None:
    given = container.whole(
        graphical(), CARD, rootfs=rootfs, hooks=HOOKS, wanted=driver_files.DEFAULT
    )
    # OpenCL is a part of compute, and an unknown file is mounted for all.
    assert {f"libnvidia-opencl.so.{VERSION}", "nvidia.icd", "libnvidia-of-tomorrow.so.1"} <= names(
        given
    )
    assert not names(given) & {"libnvidia-encode.so.1", f"libnvidia-glcore.so.{VERSION}"}
    assert not [device for device in given.edits.devices if "dri" in device.path]


@pytest.mark.usefixtures("debian")
def test_whole_cards_for_tools_alone_get_no_cuda(rootfs: Rootfs) -> None:
    given = container.whole(
        graphical(), CARD, rootfs=rootfs, hooks=HOOKS, wanted=frozenset({"utility"})
    )
    assert not {name for name in names(given) if name.startswith("libcuda")}
    assert {"libnvidia-ml.so.1", "nvidia-smi"} <= names(given)
    assert "libcuda.so.1" not in {entry.name for entry in given.cache}


@pytest.mark.usefixtures("debian")
def test_the_socket_of_a_daemon_that_ended_is_left_out(rootfs: Rootfs, tmp_path: Path) -> None:
    """The runtime would fail the create for it."""
    document = cdi_document()
    path = tmp_path / "nvidia-persistenced/socket"
    document["containerEdits"]["mounts"].append({"hostPath": str(path), "containerPath": "/s"})
    found = driver_files.from_cdi(cdi.from_document(document))
    host = HostFiles(found, Filters(CUDA, NVML), PLATFORM)
    assert "s" not in names(container.whole(host, CARD, rootfs=rootfs, hooks=HOOKS))
    path.parent.mkdir()
    path.touch()
    assert "s" in names(container.whole(host, CARD, rootfs=rootfs, hooks=HOOKS))


def test_a_32_bit_libcuda_that_is_listed_first_is_not_taken(tmp_path: Path) -> None:
    document = cdi_document()
    wide, narrow = tmp_path / "lib64/libcuda.so.580.1", tmp_path / "lib/libcuda.so.580.1"
    for place, content in ((wide, elf.library("libcuda.so.1")), (narrow, elf.library_of_32_bit())):
        place.parent.mkdir()
        place.write_bytes(content)
    mounts = [
        {"hostPath": str(narrow), "containerPath": "/usr/lib/libcuda.so.580.1"},
        {"hostPath": str(wide), "containerPath": "/usr/lib64/libcuda.so.580.1"},
        {"hostPath": "/x/libnvidia-ml.so.1", "containerPath": "/usr/lib/libnvidia-ml.so.1"},
        {"hostPath": "/y/libnvidia-ml.so.1", "containerPath": "/usr/lib64/libnvidia-ml.so.1"},
    ]
    document["containerEdits"]["mounts"] = mounts
    found = driver_files.from_cdi(cdi.from_document(document))
    assert (found.cuda.host_path, found.nvml.host_path) == (str(wide), "/y/libnvidia-ml.so.1")
