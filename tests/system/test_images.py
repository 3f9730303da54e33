# SPDX-License-Identifier: Apache-2.0
"""What programs of an image find: with an older glibc, a driver of their own, and without any."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.verify.image import PROGRAM
from tests.stack import Stack
from tests.stack.bundle import Bundle, busybox
from tests.stack.distribution import BUILD

GIB = 1 << 30
#: Debian 11.
OLDER_GLIBC = BUILD / "older11"
PYTHON = "/usr/bin/python3"
COMPAT = "usr/local/cuda/compat"
OLDER, NEWER = "550.54.15", "999.10.01"

#: Asked of whatever the loader finds.
ASK = """
import ctypes, ctypes.util
assert ctypes.util.find_library("nvidia-ml") == "libnvidia-ml.so.1"
cuda = ctypes.CDLL(ctypes.util.find_library("cuda"))
total = ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0) == 0
print(total.value)
print(*sorted({line.split()[-1] for line in open("/proc/self/maps") if "libcuda" in line}))
"""
#: dpkg's triggers do so: the cache is a file of the image, not a mount that cannot be renamed.
LDCONFIG = "import subprocess; subprocess.run(['/sbin/ldconfig'], check=True)"

Image = Callable[[Path], Bundle]


@pytest.fixture
def image(stack: Stack) -> Iterator[Image]:
    """Makes a container with a share of whatever is in a folder."""
    made: list[Bundle] = []

    def make(root: Path) -> Bundle:
        bundle = Bundle(stack, quota={"memory": "4GiB"})
        shutil.rmtree(bundle.rootfs)
        subprocess.run(["cp", "--archive", f"{root}/.", bundle.rootfs], check=True)
        made.append(bundle)
        return bundle

    yield make
    for bundle in made:
        bundle.remove()


def output(bundle: Bundle, *args: str, env: tuple[str, ...] = ()) -> list[str]:
    bundle.config["process"]["args"] = list(args)
    bundle.config["process"]["env"] += env
    bundle.save()
    done = bundle.call("run", "--bundle", str(bundle.path))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def events(bundle: Bundle, event: str) -> list[dict[str, Any]]:
    """Return what gpushared logged of a container."""
    return [
        entry
        for entry in bundle.stack.events()
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


@pytest.mark.needs("older11")
@pytest.mark.parametrize("first", ["", LDCONFIG], ids=["as it is", "ldconfig"])
def test_the_filter_is_found_under_an_older_glibc(image: Image, first: str) -> None:
    found = output(image(OLDER_GLIBC), PYTHON, "-c", f"{first}\n{ASK}")
    assert found[0] == str(4 * GIB)


@pytest.mark.needs("older11")
@pytest.mark.parametrize("version", [OLDER, NEWER])
def test_a_compat_on_ld_library_path_is_behind_the_filter(image: Image, version: str) -> None:
    bundle = image(OLDER_GLIBC)
    install_compat(bundle, version)
    total, mapped = output(bundle, PYTHON, "-c", ASK, env=(f"LD_LIBRARY_PATH=/{COMPAT}",))
    assert total == str(4 * GIB)
    assert f"/{COMPAT}/libcuda.so" in mapped
    assert "/.gpushare/driver/libcuda.so.1" in mapped
    used = events(bundle, "cuda-compat-selected")
    assert [entry["version"] for entry in used] == ([NEWER] if version == NEWER else [])


def own_driver(stack: Stack, folder: Path) -> Path:
    """Put a driver of the image's own into a folder; the simulated driver stands for NVIDIA's."""
    folder.mkdir(parents=True)
    shutil.copy(stack.installation.simulator / "libcuda.so.1", folder / "libcuda.so.560.35.03")
    (folder / "libcuda.so.1").symlink_to("libcuda.so.560.35.03")
    return folder


def mount(bundle: Bundle, source: Path, destination: str) -> None:
    entry = {"type": "bind", "source": str(source), "options": ["rbind", "ro"]}
    bundle.config["mounts"].append({**entry, "destination": destination})


def of_the_image(bundle: Bundle, _volume: Path) -> str:
    own_driver(bundle.stack, bundle.rootfs / "env/lib")
    return "/nowhere:/env/lib"


def of_the_working_directory(bundle: Bundle, _volume: Path) -> str:
    own_driver(bundle.stack, bundle.rootfs / "env/lib")
    bundle.config["process"]["cwd"] = "/env/lib"
    return ":/usr/lib"


def for_newer_processors(bundle: Bundle, _volume: Path) -> str:
    own_driver(bundle.stack, bundle.rootfs / "env/lib/glibc-hwcaps/x86-64-v2")
    return "/env/lib"


def of_a_volume(bundle: Bundle, volume: Path) -> str:
    own_driver(bundle.stack, volume / "lib")
    mount(bundle, volume, "/env")
    return "/env/lib"


def of_a_mounted_file(bundle: Bundle, volume: Path) -> str:
    file = own_driver(bundle.stack, volume / "lib") / "libcuda.so.560.35.03"
    mount(bundle, file, "/env/lib/libcuda.so.1")
    return "/env/lib"


def of_a_stubs_folder(bundle: Bundle, _volume: Path) -> str:
    """The toolkit's stub is libcuda.so; images add the other name to run what they have linked."""
    folder = bundle.rootfs / "usr/local/cuda/lib64/stubs"
    folder.mkdir(parents=True)
    (folder / "libcuda.so").write_bytes(b"a stub")
    (folder / "libcuda.so.1").symlink_to("libcuda.so")
    return "/usr/local/cuda/lib64/stubs"


PLACES = [of_the_image, of_the_working_directory, for_newer_processors, of_a_volume]


@pytest.mark.gate
@pytest.mark.parametrize("place", [*PLACES, of_a_mounted_file, of_a_stubs_folder])
def test_a_driver_that_a_program_searches_first_is_behind_the_filter(
    stack: Stack, tmp_path: Path, place: Callable[[Bundle, Path], str]
) -> None:
    bundle = Bundle(stack, quota={"memory": "4GiB"})
    try:
        path = place(bundle, tmp_path / "volume")
        found = output(bundle, PROGRAM, "info", env=(f"LD_LIBRARY_PATH={path}",))
    finally:
        bundle.remove()
    assert json.loads(found[-1])["device_total"] == 4 * GIB
    assert sorted(file.name for file in (tmp_path / "volume/lib").glob("*")) in (
        [],
        ["libcuda.so.1", "libcuda.so.560.35.03"],
    )


@pytest.mark.gate
def test_a_quota_holds_without_the_container_s_environment(stack: Stack) -> None:
    """As under `sudo`, and in a service of a systemd that is process 1 of the container."""
    bundle = Bundle(stack, quota={"memory": "4GiB"}, files=busybox())
    try:
        found = output(bundle, "/bin/busybox", "env", "-i", PROGRAM, "info")
    finally:
        bundle.remove()
    assert json.loads(found[-1])["device_total"] == 4 * GIB
