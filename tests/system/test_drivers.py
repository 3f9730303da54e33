# SPDX-License-Identifier: Apache-2.0
"""Images with a driver of their own, and images that can load none, under runc and crun."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.client import Client
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.stack.distribution import HOST
from tests.stack.musl import musl
from tests.stack.program import find
from tests.stack.release import older_release, python
from tests.system.waiting import wait_until

GIB = 1 << 30
LIBRARIES = "usr/lib/x86_64-linux-gnu"
COMPAT = "usr/local/cuda/compat"
OLDER, NEWER = "550.54.15", "999.10.01"

#: Asked of whatever the loader finds.
ASK = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
total = ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0) == 0
print(total.value)
print(*sorted({line.split()[-1] for line in open("/proc/self/maps") if "libcuda" in line}))
"""

Image = Callable[[Path], Bundle]


@pytest.fixture(scope="module", params=["runc", "crun"])
def machine(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """crun refuses a machine with v1 and v2 side by side."""
    with Stack(distribution=HOST, cgroups="v1", runtime=request.param) as made:
        made.start_daemon()
        yield made


@pytest.fixture
def image(machine: Stack) -> Iterator[Image]:
    """Makes a container with a share of whatever is in a folder."""
    made: list[Bundle] = []

    def make(root: Path) -> Bundle:
        bundle = Bundle(machine, quota={"memory": "4GiB"})
        shutil.rmtree(bundle.rootfs)
        shutil.copytree(root, bundle.rootfs, symlinks=True)
        made.append(bundle)
        return bundle

    yield make
    for bundle in made:
        bundle.remove()
    wait_until(lambda: not Client(machine.socket).tenants())


def output(bundle: Bundle, *args: str, env: tuple[str, ...] = ()) -> list[str]:
    bundle.config["process"]["args"] = list(args)
    bundle.config["process"]["env"] += env
    bundle.save()
    done = bundle.call("run", "--bundle", str(bundle.path))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def events(stack: Stack, bundle: Bundle, event: str) -> list[dict[str, Any]]:
    """Return what gpushared logged of a container."""
    lines = (stack.root / "gpushared.log").read_text().splitlines()
    entries = [json.loads(line) for line in lines if line.startswith("{")]
    return [
        entry
        for entry in entries
        if entry["event"] == event and entry.get("name", "").startswith(bundle.id[:12])
    ]


def install_compat(bundle: Bundle, version: str) -> None:
    """Install a cuda-compat package; the simulated driver stands for NVIDIA's."""
    folder = bundle.rootfs / COMPAT
    folder.mkdir(parents=True)
    shutil.copy(
        bundle.stack.installation.simulator / "libcuda.so.1", folder / f"libcuda.so.{version}"
    )
    (folder / "libcuda.so.1").symlink_to(f"libcuda.so.{version}")
    (folder / "libcuda.so").symlink_to("libcuda.so.1")


@pytest.mark.parametrize("version", [OLDER, NEWER])
def test_a_compat_on_ld_library_path_is_behind_the_filter(
    machine: Stack, image: Image, version: str
) -> None:
    bundle = image(older_release())
    install_compat(bundle, version)
    total, mapped = output(bundle, python(), "-c", ASK, env=(f"LD_LIBRARY_PATH=/{COMPAT}",))
    assert total == str(4 * GIB)
    assert f"/{COMPAT}/libcuda.so" in mapped
    assert "/opt/gpushare/driver/libcuda.so.1" in mapped
    used = events(machine, bundle, "cuda-compat-selected")
    assert [entry["version"] for entry in used] == ([NEWER] if version == NEWER else [])


@pytest.mark.parametrize("version", [OLDER, NEWER])
def test_a_compat_that_the_images_cache_names_is_behind_the_filter(
    image: Image, version: str
) -> None:
    bundle = image(older_release())
    install_compat(bundle, version)
    (bundle.rootfs / "etc/ld.so.conf").write_text(f"/{COMPAT}\n")
    subprocess.run(["chroot", str(bundle.rootfs), "/sbin/ldconfig"], check=True)
    assert output(bundle, python(), "-c", ASK)[0] == str(4 * GIB)


def test_a_newer_compat_is_copied_once_for_all(machine: Stack, image: Image) -> None:
    copies = set()
    for _ in range(2):
        bundle = image(older_release())
        install_compat(bundle, NEWER)
        assert output(bundle, python(), "-c", ASK)[0] == str(4 * GIB)
        [used] = events(machine, bundle, "cuda-compat-selected")
        copies.add(used["copy"])
    [copy] = copies
    kept = machine.root / "state/compat" / copy / f"libcuda.so.{NEWER}"
    assert kept.read_bytes() == (machine.installation.simulator / "libcuda.so.1").read_bytes()
    assert kept.stat().st_uid == 0
    assert kept.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "target",
    ["/nowhere/libcuda.so.550.54.15", "libcuda.so.550.54.15", "../../../../../etc/libcuda.so"],
)
def test_a_dangling_link_in_place_of_libcuda_is_no_hindrance(image: Image, target: str) -> None:
    """An image that was committed from a container with a driver has them."""
    bundle = image(older_release())
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (bundle.rootfs / LIBRARIES / name).symlink_to(target.replace("libcuda.so", name[:-2]))
    assert output(bundle, python(), "-c", ASK)[0] == str(4 * GIB)


@pytest.mark.parametrize(("program", "kind"), [("app", "musl"), ("static", "statically linked")])
def test_an_image_that_loads_no_driver_runs_with_a_warning(
    machine: Stack, image: Image, program: str, kind: str
) -> None:
    bundle = image(musl())
    assert output(bundle, f"/bin/{program}") == ["no driver"]
    [note] = events(machine, bundle, "tenant-request-adjusted")
    assert kind in note["note"]
    assert "the audit charges their memory" in note["note"]


def test_a_static_programs_warning_is_shown_while_it_runs(machine: Stack, image: Image) -> None:
    """busybox as Debian's busybox-static has it."""
    bundle = image(musl())
    shutil.copy(find("busybox"), bundle.rootfs / "bin/busybox")
    bundle.config["process"]["args"] = ["/bin/busybox", "sleep", "1000"]
    bundle.save()
    bundle.detach()
    [tenant] = Client(machine.socket).tenants()
    assert tenant["notes"][0].startswith("/bin/busybox is statically linked")
    shown = subprocess.run(
        [*machine.cli, "inspect", bundle.id],
        check=True,
        capture_output=True,
        text=True,
        env=machine.environment,
    )
    assert "note" in shown.stdout
    assert "/bin/busybox is statically linked" in shown.stdout
