# SPDX-License-Identifier: Apache-2.0
"""What a container with a GPU gets: mounts, loader caches, and cuda-compat of its image."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from posixpath import normpath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.oci import cdi, container, cuda_compat, driver_files, ldcache, loader
from gpushare.oci.container import (
    IN_CONTAINER,
    ON_HOST,
    ContainerEdits,
    CoveredPath,
    HostFiles,
    LibraryTree,
    PlacedEdits,
)
from gpushare.oci.cuda_compat import Compat, CompatError
from gpushare.oci.edits import Edits, Mount
from gpushare.oci.elf import platform_of
from gpushare.oci.loader import Filters
from gpushare.oci.rootfs import Rootfs
from gpushare.oci.spec import Spec
from tests.unit.host import elf
from tests.unit.oci.examples import LIBRARIES, VERSION, cdi_document, opened

CUDA = "/usr/local/lib/gpushare/1-abc/lib/libcuda.so.1"


NVML = "/usr/local/lib/gpushare/1-abc/lib/libnvidia-ml.so.1"


TENANT = "/run/gpushare/tenants/4f1c"


PROGRAM = "/usr/local/lib/gpushare/1-abc/bin/gpushare-hook"


HOOK = container.binding_hook(PROGRAM, "/run/g.sock", "4f1c")


HOOKS = (HOOK,)


CARD = [("GPU-0", "0")]


SOURCES = Path(__file__).parents[3]


PLATFORM = platform_of("x86_64")


def host_of(document: dict[str, Any]) -> HostFiles:
    found = driver_files.from_cdi(cdi.from_document(document))
    return HostFiles(found, Filters(CUDA, NVML), PLATFORM)


HOST = host_of(cdi_document())


def made_debian(root: Path) -> Path:
    for folder in (LIBRARIES[1:], "usr/lib64", "usr/bin", "etc", "usr/local"):
        (root / folder).mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    (root / "lib64").symlink_to("usr/lib64")
    (root / "libraries").symlink_to(f"..{LIBRARIES}")
    (root / "usr/lib64/ld-linux-x86-64.so.2").write_text("the loader")
    (root / LIBRARIES[1:] / "libc.so.6").write_text("libc")
    return root


@pytest.fixture
def debian(root: Path) -> Path:
    return made_debian(root)


def shared(rootfs: Rootfs, host: HostFiles = HOST, **more: Any) -> ContainerEdits:
    return container.shared(host, CARD, rootfs=rootfs, hooks=HOOKS, tenant_directory=TENANT, **more)


def sources(wanted: ContainerEdits) -> dict[str, str]:
    """Return destination -> source, as the last mount of a destination makes it."""
    return {mount.destination: mount.source for mount in wanted.edits.mounts}


@pytest.mark.usefixtures("debian")
def test_a_share_in_full(rootfs: Rootfs) -> None:
    wanted = shared(rootfs)
    real = f"{LIBRARIES}/libcuda.so.{VERSION}"
    assert sources(wanted) == {
        "/.gpushare/driver/libcuda.so.1": real,
        "/.gpushare/driver/libnvidia-ml.so.1": f"{LIBRARIES}/libnvidia-ml.so.{VERSION}",
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
        "/.gpushare/tenant": TENANT,
        "/.gpushare/tenant/status": f"{TENANT}/status",
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
def test_every_mount_but_status_is_read_only_and_none_gives_privileges(rootfs: Rootfs) -> None:
    for mount in shared(rootfs).edits.mounts:
        assert {"nosuid", "nodev"} <= set(mount.options)
        assert {"bind", "rbind"} & set(mount.options)
        assert mount.read_only == (mount.destination != "/.gpushare/tenant/status")


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
    root: Path, rootfs: Rootfs, libc: str | None, folder: str
) -> None:
    if libc:
        (root / libc).mkdir(parents=True)
        (root / libc / "libc.so.6").write_text("libc")
    if libc == "usr/lib":
        (root / "usr/lib64").symlink_to("lib")
    wanted = shared(rootfs)
    assert {entry.path.rpartition("/")[0] for entry in wanted.cache} == {folder}
    assert sources(wanted)[rootfs.resolve(f"{folder}/libcuda.so.1")] == CUDA
    assert libc != "usr/lib" or "/usr/lib64/libcuda.so.1" not in sources(wanted)


def test_the_filter_goes_over_whatever_the_image_calls_libcuda(
    debian: Path, rootfs: Rootfs
) -> None:
    compat = debian / "usr/local/cuda-12.4/compat"
    compat.mkdir(parents=True)
    (debian / "usr/local/cuda").symlink_to("cuda-12.4")
    for name in ("libcuda.so.550.54.15", "libnvidia-ptxjitcompiler.so.550.54.15"):
        (compat / name).write_text("older")
        (compat / name.replace("550.54.15", "1")).symlink_to(name)
    (debian / "usr/lib/x86_64-linux-gnu/libcuda.so.1").symlink_to("/opt/old/libcuda.so.470")
    (debian / "usr/lib/libnvidia-ml.so.1").write_text("older")
    found = sources(shared(rootfs))
    there = "/usr/local/cuda-12.4/compat"
    assert found[f"{there}/libcuda.so.550.54.15"] == CUDA
    assert found[f"{there}/libnvidia-ptxjitcompiler.so.550.54.15"] == (
        f"{LIBRARIES}/libnvidia-ptxjitcompiler.so.{VERSION}"
    )
    assert found["/opt/old/libcuda.so.470"] == CUDA
    assert found["/usr/lib/libnvidia-ml.so.1"] == NVML
    assert not any("/cuda/" in destination for destination in found)


def test_the_filter_goes_over_the_folder_that_the_images_cache_names(
    debian: Path, rootfs: Rootfs
) -> None:
    (debian / "opt/conda/lib").mkdir(parents=True)
    (debian / "opt/conda/lib/libcuda.so.1").write_text("somebody's")
    cache = ldcache.merge(None, [("libcuda.so.1", "/opt/conda/lib/libcuda.so.1")], 0x303)
    (debian / "etc/ld.so.cache").write_bytes(cache)
    assert sources(shared(rootfs))["/opt/conda/lib/libcuda.so.1"] == CUDA


def test_a_hostile_image_chooses_no_mount_source(debian: Path, rootfs: Rootfs) -> None:
    folder = debian / "usr/lib/x86_64-linux-gnu"
    (folder / "libcuda.so.1").symlink_to("../../../../../../../etc/shadow")
    (folder / "libcuda.so.999").symlink_to("/proc/self/root/etc/shadow")
    (folder / "libnvidia-ml.so.1").symlink_to(debian.parent / "outside")
    wanted = shared(rootfs)
    honest = {CUDA, NVML, TENANT, f"{TENANT}/status", "/usr/bin/nvidia-smi"}
    for mount in wanted.edits.mounts:
        assert mount.source in honest or mount.source.startswith(f"{LIBRARIES}/lib")
        assert ".." not in mount.destination
    assert not (debian.parent / "outside").exists()


@pytest.mark.usefixtures("debian")
def test_whole_cards_get_the_driver_and_no_filter(rootfs: Rootfs) -> None:
    wanted = container.whole(HOST, CARD, rootfs=rootfs, hooks=HOOKS)
    found = sources(wanted)
    assert CUDA not in found.values()
    assert NVML not in found.values()
    assert not any(destination.startswith("/.gpushare") for destination in found)
    assert found[f"{LIBRARIES}/libcuda.so.1"] == f"{LIBRARIES}/libcuda.so.{VERSION}"
    assert found[f"{LIBRARIES}/libnvidia-opencl.so.{VERSION}"]
    assert [device.path for device in wanted.edits.devices] == [
        "/dev/nvidiactl",
        "/dev/nvidia-modeset",
        "/dev/nvidia-uvm",
        "/dev/nvidia0",
        "/dev/dri/renderD128",
    ]


def install_cache(rootfs: Rootfs, wanted: ContainerEdits, keep: Path) -> Mount | None:
    merged = loader.merge_cache(rootfs, wanted.cache, PLATFORM)
    return None if merged is None else loader.put_cache(rootfs, merged, keep)


def test_an_image_without_glibc_gets_no_cache(root: Path, rootfs: Rootfs, tmp_path: Path) -> None:
    (root / "etc").mkdir()
    wanted = shared(rootfs)
    assert install_cache(rootfs, wanted, tmp_path) is None
    assert list((root / "etc").iterdir()) == []


@pytest.mark.parametrize("content", [b"not a cache", b"x" * (5 << 20)])
def test_a_cache_that_is_not_understood_is_left_as_it_is(
    debian: Path, rootfs: Rootfs, content: bytes
) -> None:
    (debian / "etc/ld.so.cache").write_bytes(content)
    wanted = shared(rootfs)
    assert install_cache(rootfs, wanted, debian) is None
    assert (debian / "etc/ld.so.cache").read_bytes() == content


def read_only(_self: Rootfs, path: str, _data: bytes) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)


def test_in_a_read_only_layer_the_cache_is_a_mount_kept_by_its_content(
    debian: Path,
    rootfs: Rootfs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Rootfs, "replace", read_only)
    keep = tmp_path / "keep"  # made when it is needed: few images are read-only
    wanted = shared(rootfs)
    assert install_cache(rootfs, wanted, keep) is None
    (debian / "etc/ld.so.cache").write_bytes(ldcache.merge(None, [("a", "/a")], 0x303))
    mount = install_cache(rootfs, wanted, keep)
    assert isinstance(mount, Mount)
    assert (mount.destination, mount.read_only) == ("/etc/ld.so.cache", True)
    assert {"nosuid", "nodev", "noexec"} <= set(mount.options)
    entries = ldcache.parse(Path(mount.source).read_bytes()).entries
    assert {entry.name for entry in entries} >= {b"a", b"libcuda.so.1"}
    assert install_cache(rootfs, wanted, keep) == mount
    assert [str(path) for path in keep.iterdir()] == [mount.source]
    assert wanted.with_mount(mount).mounts[-1] == mount


def test_the_hosts_own_cache_is_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(_self: Rootfs, path: str, _data: bytes) -> None:
        raise AssertionError(f"the host's {path} was written")

    monkeypatch.setattr(Rootfs, "replace", replace)
    before = Path("/etc/ld.so.cache").read_bytes()
    with opened(Path("/")) as rootfs:
        mount = install_cache(rootfs, shared(rootfs), tmp_path)
    assert mount is not None
    assert mount.destination == "/etc/ld.so.cache"
    assert Path(mount.source).read_bytes() != before


def graphical() -> HostFiles:
    """A driver of which every capability has a part."""
    document = cdi_document()
    mounts = document["containerEdits"]["mounts"]
    names = ("libnvidia-encode.so.1", "libnvidia-ngx.so.1", "libnvidia-of-tomorrow.so.1")
    paths = [f"{LIBRARIES}/{name}" for name in names]
    paths += ["/etc/OpenCL/vendors/nvidia.icd", "/usr/share/glvnd/egl_vendor.d/10_nvidia.json"]
    mounts += [{"hostPath": path, "containerPath": path} for path in paths]
    return host_of(document)


def names(wanted: ContainerEdits) -> set[str]:
    return {Path(mount.destination).name for mount in wanted.edits.mounts}


@pytest.mark.usefixtures("debian")
def test_a_share_gets_only_allowed_capabilities_that_bypass_the_library(rootfs: Rootfs) -> None:
    video = shared(rootfs, graphical(), extra=frozenset({"video"}))
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
def test_the_socket_of_a_daemon_that_ended_is_left_out(rootfs: Rootfs, tmp_path: Path) -> None:
    """The runtime would fail the create for it."""
    document = cdi_document()
    path = tmp_path / "nvidia-persistenced/socket"
    document["containerEdits"]["mounts"].append({"hostPath": str(path), "containerPath": "/s"})
    host = host_of(document)
    assert "s" not in names(container.whole(host, CARD, rootfs=rootfs, hooks=HOOKS))
    path.parent.mkdir()
    path.touch()
    assert "s" in names(container.whole(host, CARD, rootfs=rootfs, hooks=HOOKS))


PATHS = (
    "/",
    "/opt",
    "/.gpushare",
    IN_CONTAINER.libraries,
    "/usr",
    "/usr/lib",
    LIBRARIES,
    "/lib",
    "/usr/lib64",
    "/usr/bin",
    "/usr/bin/nvidia-smi",
    f"{LIBRARIES}/libcuda.so.1",
    "/etc",
    "/etc/ld.so.cache",
    "/libraries",
    "/libraries/../../../opt",
    "/usr/local",
    "/data",
)


OPTIONS = (["rbind"], ["bind", "ro"], ["rbind", "rshared"])


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rootfs]:
    with opened(made_debian(tmp_path_factory.mktemp("image"))) as rootfs:
        yield rootfs


def bind(destination: str, *options: str) -> dict[str, Any]:
    found = list(options) or ["rbind"]
    return {"destination": destination, "type": "bind", "source": "/srv", "options": found}


def tmpfs(destination: str) -> dict[str, Any]:
    return {"destination": destination, "type": "tmpfs", "source": "tmpfs"}


def placed(rootfs: Rootfs, *mounts: dict[str, Any]) -> PlacedEdits:
    return container.place(shared(rootfs), Spec({"mounts": list(mounts)}), rootfs, HOST.driver)


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


def test_the_loaders_cache_names_the_private_directory(image: Rootfs, tmp_path: Path) -> None:
    """Also where an earlier start left links in the layer, which the volume covers."""
    placed(image)
    found = placed(image, bind("/libraries"))
    assert found.volume == LIBRARIES
    assert {Path(entry.path).parent for entry in found.wanted.cache} == {
        Path(IN_CONTAINER.libraries)
    }
    edits = with_cache(found, image, tmp_path)
    assert edits == found.wanted.edits  # the cache was replaced in the layer
    with pytest.raises(CoveredPath, match=f"at {LIBRARIES} covers the loader's directory"):
        with_cache(placed(image, bind("/libraries"), bind("/etc")), image, tmp_path)


@pytest.mark.parametrize("path", ["/", "/.gpushare", "/.gpushare/lib", "/.gpushare/../.gpushare"])
def test_a_volume_where_our_folder_is_has_its_name_in_the_refusal(image: Rootfs, path: str) -> None:
    with pytest.raises(CoveredPath, match=rf"the volume at {normpath(path)} covers /\.gpushare,"):
        placed(image, bind(path))


@pytest.mark.parametrize("path", ["/opt", "/opt/gpushare", "/opt/gpushare/driver"])
def test_in_the_host_s_root_a_volume_cannot_be_where_ours_is(
    image: Rootfs, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(Rootfs, "is_hosts", lambda _: True)
    assert f"{ON_HOST.driver}/libcuda.so.1" in sources(placed(image).wanted)
    with pytest.raises(CoveredPath, match=f"the volume at {path} covers /opt/gpushare/driver/"):
        placed(image, bind(path))


OCCUPIED: dict[str, Callable[[Path], object]] = {
    "a file": Path.touch,
    "a link": lambda path: path.symlink_to("/usr"),
    "a link to nothing": lambda path: path.symlink_to("/nothing"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a pipe": os.mkfifo,
}


@pytest.mark.parametrize("make", OCCUPIED.values(), ids=OCCUPIED)
def test_an_image_that_has_our_folder_s_name_is_refused_by_it(
    debian: Path, rootfs: Rootfs, make: Callable[[Path], object]
) -> None:
    make(debian / ".gpushare")
    with pytest.raises(CoveredPath, match=r"has a file or a link at /\.gpushare, .* Remove it"):
        placed(rootfs)


def test_what_an_image_has_in_our_folder_decides_nothing(debian: Path, rootfs: Rootfs) -> None:
    """Forged pages there, or links to other places, are covered by one mount."""
    before = placed(rootfs)
    forged = debian / ".gpushare"
    (forged / "tenant").mkdir(parents=True)
    (forged / "tenant/grant").write_text("forged")
    (forged / "lib").symlink_to("/usr")
    (forged / "driver").symlink_to("/opt")
    assert placed(rootfs).wanted == before.wanted


def test_a_spec_of_endless_mounts_is_refused(image: Rootfs) -> None:
    with pytest.raises(CoveredPath, match="over 4096 mounts"):
        placed(image, *[tmpfs(f"/{number}") for number in range(4097)])


def test_a_volume_over_the_libraries_needs_a_cache_of_the_image(
    debian: Path, rootfs: Rootfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = placed(rootfs, bind(LIBRARIES))
    (debian / "etc/ld.so.cache").write_bytes(b"no cache")
    with pytest.raises(CoveredPath, match=f"at {LIBRARIES} covers the loader's directory"):
        with_cache(found, rootfs, debian)
    (debian / "etc/ld.so.cache").unlink()
    monkeypatch.setattr(Rootfs, "replace", read_only)
    with pytest.raises(CoveredPath, match=r"ld\.so\.cache cannot be created"):
        with_cache(found, rootfs, debian)


# --- one mount in place of the single mounts of the libraries ---

TREE = LibraryTree("/run/tree", container.tree_files(HOST.driver, HOST.filters))


TOP = IN_CONTAINER.top


TENANT_MOUNT = IN_CONTAINER.tenant


def ours(found: PlacedEdits) -> list[Mount]:
    return [m for m in found.wanted.edits.mounts if f"{m.destination}/".startswith(f"{TOP}/")]


def test_it_stands_for_the_tmpfs_and_all_libraries_in_it(image: Rootfs) -> None:
    single = placed(image)
    found = container.with_tree(single, TREE)
    assert [(m.source, m.destination) for m in ours(found)] == [
        ("/run/tree", TOP),
        (TENANT, TENANT_MOUNT),
        (f"{TENANT}/status", f"{TENANT_MOUNT}/status"),
    ]
    assert {"rbind", "rprivate", "ro", "nosuid", "nodev"} <= set(ours(found)[0].options)
    for mount in ours(single)[1:-2]:
        assert TREE.files[mount.destination] == mount.source
    others = [m for m in single.wanted.edits.mounts if m not in ours(single)]
    assert [m for m in found.wanted.edits.mounts if m not in ours(found)] == others
    assert replace(found, wanted=single.wanted) == single  # nothing else has changed


def test_a_container_with_another_library_has_single_mounts(image: Rootfs) -> None:
    """A newer cuda-compat of the image is its libcuda."""
    single = placed(image)
    other = {**TREE.files, "/.gpushare/driver/libcuda.so.1": "/other/libcuda.so.1"}
    assert container.with_tree(single, LibraryTree("/run/tree", other)) is single


def keep(folder: Path, content: bytes, age: float = 0.0) -> Path:
    path = loader._kept(folder, content)
    if age:
        then = time.time() - age
        os.utime(path, (then, then))
    return path


def test_caches_that_are_used_no_more_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "_MOST_KEPT", 8)
    old = [keep(tmp_path, b"old %d" % number, 7200 - number) for number in range(8)]
    used = keep(tmp_path, b"old 0")  # by another container, just now
    new = keep(tmp_path, b"new")
    assert used == old[0]
    assert sorted(tmp_path.iterdir()) == sorted([old[0], *old[2:], new])


def test_the_size_is_bounded_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_MOST_KEPT_BYTES", 10_000)
    for number in range(20):
        keep(tmp_path, bytes([number]) * 3000, 7200 - number)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10_000


NEWER = "590.10.01"


FOLDER = "usr/local/cuda/compat"


def test_an_open_cache_outlives_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container's mount of it does."""
    monkeypatch.setattr(loader, "_MOST_KEPT", 1)
    with keep(tmp_path, b"mounted", 7200).open("rb") as mounted:
        keep(tmp_path, b"another")
        assert mounted.read() == b"mounted"
    assert len(list(tmp_path.iterdir())) == 1


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


def test_a_package_of_endless_size_is_refused_unread(
    root: Path, rootfs: Rootfs, tmp_path: Path
) -> None:
    place = package(root)
    os.truncate(place / f"libcuda.so.{NEWER}", cuda_compat.MOST_BYTES + 1)
    with pytest.raises(CompatError, match="over 1024 MiB"):
        cuda_compat.keep(rootfs, found(rootfs), tmp_path / "compat")


def test_holes_of_a_library_stay_holes(root: Path, rootfs: Rootfs, tmp_path: Path) -> None:
    """Five such images would take 1.5 GB of the host; zeros that were written take nothing."""
    library = package(root) / f"libcuda.so.{NEWER}"
    os.truncate(library, 300 << 20)
    with library.open("r+b") as file:
        file.seek(200 << 20)
        file.write(bytes(1 << 20) + b"end")
    copy = cuda_compat.keep(rootfs, found(rootfs), tmp_path / "compat") / library.name
    assert copy.stat().st_size == 300 << 20
    assert 512 * copy.stat().st_blocks < 1 << 20
    with library.open("rb") as ours, copy.open("rb") as its:
        for offset in (0, 200 << 20, 201 << 20):
            assert os.pread(ours.fileno(), 8192, offset) == os.pread(its.fileno(), 8192, offset)
    longer = package(root, padding=bytes(5000))
    assert cuda_compat.keep(rootfs, found(rootfs), tmp_path / "compat") != copy.parent
    assert longer.exists()


def test_a_full_store_removes_the_oldest_unused_copy(
    root: Path, rootfs: Rootfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "compat"
    copies = []
    for number in range(3):
        package(root, padding=bytes([number]) * 1000)
        copies.append(cuda_compat.keep(rootfs, found(rootfs), store))
        os.utime(copies[-1], (number, number))
    one = sum(512 * path.stat().st_blocks for path in copies[0].iterdir())
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


def test_the_copy_is_the_real_library_and_the_filter_goes_over_the_images(
    root: Path, rootfs: Rootfs, tmp_path: Path
) -> None:
    package(root)
    folder = cuda_compat.keep(rootfs, found(rootfs), tmp_path / "compat")
    newer = driver_files.with_compat(HOST.driver, folder)
    mounts = sources(shared(rootfs, replace(HOST, driver=newer)))
    assert mounts["/.gpushare/driver/libcuda.so.1"] == f"{folder}/libcuda.so.{NEWER}"
    # libcuda loads the parts of its own version, and NVML is the kernel's.
    jit = f"{folder}/libnvidia-ptxjitcompiler.so.{NEWER}"
    assert mounts[f"{LIBRARIES}/libnvidia-ptxjitcompiler.so.1"] == jit
    assert f"{LIBRARIES}/libnvidia-gpucomp.so.{NEWER}" in mounts
    nvml = mounts["/.gpushare/driver/libnvidia-ml.so.1"]
    assert nvml == f"{LIBRARIES}/libnvidia-ml.so.{VERSION}"
    assert mounts[f"/{FOLDER}/libcuda.so.{NEWER}"] == CUDA
    assert mounts[f"/{FOLDER}/libnvidia-ptxjitcompiler.so.{NEWER}"] == jit
