# SPDX-License-Identifier: Apache-2.0
"""The loader's cache against glibc itself: its ldconfig, its loader, and a second parser."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.oci import ldcache
from gpushare.oci.elf import this_platform
from gpushare.oci.ldcache import LdCacheEntry, LoaderCache, LoaderCacheError

pytestmark = pytest.mark.gate

PLATFORM = this_platform()
FLAGS = PLATFORM.cache_flags
LDCONFIG = shutil.which("ldconfig", path="/sbin:/usr/sbin") or "/sbin/ldconfig"
OURS = (
    ("libcuda.so.1", "/opt/x/libcuda.so.1"),
    ("libcuda.so", "/opt/x/libcuda.so"),
    ("libnvidia-ml.so.1", "/opt/x/libnvidia-ml.so.1"),
)


def listed(cache: Path) -> list[str]:
    """Return the lines of `ldconfig -p` but for the first, which names the file."""
    command = [LDCONFIG, "-C", str(cache), "-p"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line.strip() for line in done.stdout.splitlines()[1:]]


def library(name: str) -> Path:
    """Return the file that this Python's loader takes for `name`."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.split()[-1])
        if path.name == name:
            return path
    raise FileNotFoundError(name)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Return a folder of libraries and a cache of it, made by the machine's own ldconfig."""
    folder = tmp_path / "lib"
    folder.mkdir()
    for name in ("libz.so.1", "libm.so.6", "libcuda.so.1", "libfoo.so.2", "libfoo.so.10"):
        shutil.copy(library("libc.so.6"), folder / name)
    (tmp_path / "ld.so.conf").write_text(f"{folder}\n")
    command = [LDCONFIG, "-X", "-C", str(tmp_path / "cache"), "-f", str(tmp_path / "ld.so.conf")]
    subprocess.run(command, check=True, capture_output=True)
    return tmp_path / "cache"


def test_the_machines_own_cache_survives_unchanged_in_the_eyes_of_ldconfig(tmp_path: Path) -> None:
    own = Path("/etc/ld.so.cache")
    again = tmp_path / "cache"
    again.write_bytes(ldcache.dump(ldcache.parse(own.read_bytes())))
    assert listed(again) == listed(own)
    assert len(listed(own)) > 5


def test_ours_are_listed_once_and_others_stay(image: Path) -> None:
    before = listed(image)
    image.write_bytes(ldcache.merge(image.read_bytes(), OURS, FLAGS))
    after = listed(image)
    ours = [line for line in after if re.match(r"lib(cuda|nvidia-ml)\.", line)]
    assert [line.split(" => ")[1] for line in ours] == [
        "/opt/x/libnvidia-ml.so.1",
        "/opt/x/libcuda.so.1",
        "/opt/x/libcuda.so",
    ]
    assert [line for line in after if line not in ours] == [
        line for line in before if not line.startswith("libcuda.")
    ]


@pytest.mark.parametrize("has_cache", [True, False])
def test_the_loader_takes_ours_and_finds_the_rest(tmp_path: Path, has_cache: bool) -> None:
    root = tmp_path / "root"
    folder = root / "opt/x"
    program = Path("/bin/true").resolve()
    loader = Path(PLATFORM.loader)
    for source, target in (
        (program, root / "bin/true"),
        (loader.resolve(), root / PLATFORM.loader[1:]),
        (library("libc.so.6"), root / "usr/lib" / PLATFORM.multiarch / "libc.so.6"),
        (library("libc.so.6"), root / "usr/lib64/libc.so.6"),
        (library("libc.so.6"), folder / "libcuda.so.1"),
        (library("libc.so.6"), root / "compat/libcuda.so.1"),
    ):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    (root / "etc").mkdir()
    preload = ("--preload", "libcuda.so.1")
    before = None
    if has_cache:
        compat = LdCacheEntry(b"libcuda.so.1", b"/compat/libcuda.so.1", FLAGS)
        fast = LdCacheEntry(b"libcuda.so.1", b"/fast/libcuda.so.1", FLAGS, hwcaps=b"x86-64-v2")
        before = ldcache.dump(LoaderCache((fast, compat)))
    (root / "etc/ld.so.cache").write_bytes(ldcache.merge(before, OURS, FLAGS))
    done = subprocess.run(
        [*_chroot(), str(root), PLATFORM.loader, *preload, "--list", "/bin/true"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "/opt/x/libcuda.so.1" in done.stdout, done.stdout + done.stderr


def _chroot() -> list[str]:
    """Return the command that runs another one in a root directory, with or without root."""
    command = ["chroot"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "chroot"]
    if subprocess.run([*command, "/", "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs root, or user namespaces for everybody")
    return command


def test_a_machine_with_another_processor_keeps_its_libraries() -> None:
    other = LdCacheEntry(b"libcuda.so.1", b"/lib32/libcuda.so.1", 0x0003)
    hwcaps = LdCacheEntry(b"libcuda.so.1", b"/hwcaps/libcuda.so.1", FLAGS, hwcaps=b"x86-64-v3")
    cache = LoaderCache((hwcaps, other)).with_first(OURS[:1], FLAGS)
    ours = LdCacheEntry(b"libcuda.so.1", b"/opt/x/libcuda.so.1", FLAGS)
    assert cache.entries == (ours, other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: b"", "shorter than its header"),
        (lambda data: data[:40], "shorter than its header"),
        (lambda data: b"#!/bin/sh" + data, "of an unknown format"),
        (lambda data: data[:17] + b"2.0" + data[20:], "of an unknown format"),
        (lambda data: data[:20] + b"\xff\xff\xff\x7f" + data[24:], "libraries and is shorter"),
        (lambda data: data[:28] + b"\x03" + data[29:], "of another byte order"),
        (lambda data: data[:52] + b"\xff\xff\xff\x7f" + data[56:], "has a name that does not end"),
        (lambda data: data[:32] + b"\xff\xff\xff\x7f" + data[36:], "extension beyond its end"),
        (lambda data: data[:32] + b"\x30\0\0\0" + data[36:], "has an unknown extension"),
        (lambda _: b"ld.so-1.7.0", "shorter than its header"),
        (lambda data: b"ld.so-1.7.0\0\xff\xff\xff\xff" + data, "shorter than its header"),
        (lambda data: data + bytes(4 << 20), "over 4 MiB"),
    ],
)
def test_a_damaged_cache_is_refused(image: Path, change: object, message: str) -> None:
    assert callable(change)
    damaged = change(image.read_bytes())
    with pytest.raises(LoaderCacheError, match=message):
        ldcache.parse(damaged)


@given(st.binary(max_size=300), st.integers(min_value=0, max_value=400))
def test_any_bytes_are_read_or_refused(noise: bytes, at: int) -> None:
    cache = bytearray(ldcache.merge(None, OURS, FLAGS))
    cache[at : at + len(noise)] = noise
    try:
        read = ldcache.parse(bytes(cache))
    except LoaderCacheError:
        return
    assert ldcache.parse(ldcache.dump(read)) == read


def test_the_order_is_ldconfigs(image: Path) -> None:
    names = [line.split()[0].encode() for line in listed(Path("/etc/ld.so.cache")) if "=>" in line]
    names_of_image = [line.split()[0].encode() for line in listed(image) if "=>" in line]
    for found in (names, names_of_image):
        pairs = itertools.pairwise(found)
        assert all(ldcache.compare_names(one, other) >= 0 for one, other in pairs)
    assert ldcache.compare_names(b"libfoo.so.10", b"libfoo.so.2") > 0
