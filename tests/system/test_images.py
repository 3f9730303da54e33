# SPDX-License-Identifier: Apache-2.0
"""What programs of an image find: by the loader, by its cache, with an older glibc."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.stack.release import older_release, python

GIB = 1 << 30

FIND = """
import ctypes, ctypes.util, subprocess
print(ctypes.util.find_library("cuda"), ctypes.util.find_library("nvidia-ml"))
cuda = ctypes.CDLL(ctypes.util.find_library("cuda"))
total = ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0) == 0
print(total.value)
"""


@pytest.fixture
def older(stack: Stack) -> Iterator[Bundle]:
    """A container of an older release of this distribution, with a Python."""
    bundle = Bundle(stack, quota={"memory": "4GiB"})
    shutil.rmtree(bundle.rootfs)
    shutil.copytree(older_release(), bundle.rootfs, symlinks=True)
    yield bundle
    bundle.remove()


def output(bundle: Bundle, *args: str) -> str:
    bundle.config["process"]["args"] = list(args)
    bundle.save()
    done = bundle.call("run", "--bundle", str(bundle.path))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ldconfig_lists_the_driver_first(older: Bundle) -> None:
    listed = output(older, "/sbin/ldconfig", "-p")
    assert "libcuda.so.1" in listed
    assert "libnvidia-ml.so.1" in listed


def test_find_library_finds_the_filter_under_an_older_glibc(older: Bundle) -> None:
    found = output(older, python(), "-c", FIND).splitlines()
    assert found == ["libcuda.so.1 libnvidia-ml.so.1", str(4 * GIB)]


def test_an_image_may_run_ldconfig_itself(older: Bundle) -> None:
    """dpkg's triggers do: the cache is a file of the image, not a mount that cannot be renamed."""
    script = f"import subprocess; subprocess.run(['/sbin/ldconfig'], check=True)\n{FIND}"
    assert output(older, python(), "-c", script).splitlines()[-1] == str(4 * GIB)


def test_an_image_whose_cache_names_a_compat_driver_gets_ours(older: Bundle) -> None:
    """NVIDIA's images carry cuda-compat; one that ran ldconfig on it would find that first."""
    compat = older.rootfs / "usr/local/cuda/compat"
    compat.mkdir(parents=True)
    simulated = older.stack.installation.simulator / "libcuda.so.1"
    shutil.copy(simulated, compat / "libcuda.so.1")
    (older.rootfs / "etc/ld.so.conf").write_text("/usr/local/cuda/compat\n")
    subprocess.run(["chroot", str(older.rootfs), "/sbin/ldconfig"], check=True)
    assert output(older, python(), "-c", FIND).splitlines()[-1] == str(4 * GIB)
