# SPDX-License-Identifier: Apache-2.0
"""Small files that ask for much: memory and work stay in proportion to what was sent."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushare.oci import cdi, driver_files, ldcache, loader
from gpushare.oci import spec as specs
from gpushare.oci.elf import platform_of
from gpushare.oci.ldcache import LoaderCacheError
from gpushare.oci.loader import Filters, Places
from gpushare.oci.rootfs import Rootfs, RootfsError
from gpushare.oci.spec import SpecError

from .examples import cdi_document

FLAGS = 0x303
WANTED = (("libcuda.so.1", "/x/libcuda.so.1"),)
PLATFORM = platform_of("x86_64")
LIBRARIES = "usr/lib/x86_64-linux-gnu"
_HEADER = struct.Struct("<20sIIB3xI12x")
_ENTRY = struct.Struct("<iIIIQ")
_MAGIC = b"glibc-ld.so.cache1.1"


@contextmanager
def at_most(mebibytes: int) -> Iterator[None]:
    """Fail where Python's allocations inside are ever more than that."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < mebibytes << 20, f"{peak >> 20} MiB"


def overlapping(count: int) -> bytes:
    """Return a cache whose every name is another end of the same few long strings."""
    text = (b"a" * 4096 + b"\0") * 100
    start = _HEADER.size + count * _ENTRY.size

    def place(number: int) -> int:
        return start + number % 100 * 4097 + number // 100 % 4000

    entries = b"".join(
        _ENTRY.pack(FLAGS, place(number), place(number * 7), 0, 0) for number in range(count)
    )
    return _HEADER.pack(_MAGIC, count, len(text), 2, 0) + entries + text


def with_sections(count: int) -> bytes:
    """Return a cache whose extension has many parts, each nearly all of the file."""
    extension = struct.pack("<II", 0xEAA42174, count)
    size = _HEADER.size + 8 + count * 16
    parts = b"".join(struct.pack("<IIII", 7 + tag, 0, 1, size - 1) for tag in range(count))
    return _HEADER.pack(_MAGIC, 0, 0, 2, _HEADER.size) + extension + parts


def with_folders(count: int) -> bytes:
    """Return a cache with the driver in ever the same folder, each time by another name."""
    strings, entries = bytearray(b"libcuda.so.1\0"), []
    start = _HEADER.size + count * _ENTRY.size
    for number in range(count):
        entries.append(_ENTRY.pack(FLAGS, start, start + len(strings), 0, 0))
        strings += f"/{'./' * (number % 40)}{'/' * (number // 40)}lib/libcuda.so.1\0".encode()
    return _HEADER.pack(_MAGIC, count, len(strings), 2, 0) + b"".join(entries) + bytes(strings)


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        (overlapping(80_000), "names that overlap to over 4 MiB"),
        (with_sections(60_000), "an extension of 60000 parts"),
    ],
)
def test_a_loader_cache_that_unfolds_to_gigabytes_is_refused(cache: bytes, message: str) -> None:
    assert len(cache) < ldcache.MAX_BYTES
    with at_most(64), pytest.raises(LoaderCacheError, match=message):
        ldcache.merge(cache, WANTED, FLAGS)


def test_a_loader_cache_that_is_nearly_too_long_stays_as_it_is() -> None:
    """With our names it would be over what is read the next time."""
    long = tuple((f"lib{number:06}{'x' * 4000}.so", f"/{'y' * 90}") for number in range(1000))
    cache = ldcache.merge(None, long, FLAGS)
    more = tuple((f"z{number}{'z' * 4000}", "/z") for number in range(100))
    with pytest.raises(LoaderCacheError, match="would be over 4 MiB"):
        ldcache.merge(cache, more, FLAGS)


def test_a_cache_of_unusual_size_is_not_kept(rootfs: Rootfs, root: Path) -> None:
    """The daemon lives for months, and every image may bring another 4 MiB."""
    (root / "etc").mkdir()
    (root / "lib64").mkdir()
    (root / "lib64/ld-linux-x86-64.so.2").touch()
    names = tuple((f"lib{number:06}{'x' * 1000}.so", "/y") for number in range(3000))
    entries = (loader.CacheEntry("libcuda.so.1", "/x/libcuda.so.1"),)
    tracemalloc.start()
    try:
        for number in range(6):
            cache = ldcache.merge(None, (*names, (f"lib{number}", "/z")), FLAGS)
            (root / "etc/ld.so.cache").write_bytes(cache)
            loader.install_cache(rootfs, entries, PLATFORM, root / "keep")
        del cache
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 8 << 20


@pytest.fixture
def places(root: Path, rootfs: Rootfs) -> Callable[[], Places]:
    for folder in (LIBRARIES, "etc", "usr/local", "lib"):
        (root / folder).mkdir(parents=True)
    (root / LIBRARIES / "libc.so.6").touch()
    found = driver_files.from_cdi(cdi.from_document(cdi_document()))
    return lambda: Places(rootfs, PLATFORM, found)


def test_an_image_with_hundreds_of_drivers_is_refused(
    root: Path, places: Callable[[], Places]
) -> None:
    """Each would be one more mount of the container, and one more look-up before it starts."""
    for number in range(300):
        (root / LIBRARIES / f"libcuda.so.{number}").touch()
    with pytest.raises(RootfsError, match="over 256 files called as the driver's are"):
        places().filters(Filters("/f/cuda", "/f/nvml"))


def test_of_folders_without_end_only_some_are_looked_into(
    root: Path, places: Callable[[], Places], monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "etc/ld.so.cache").write_bytes(with_folders(20_000))
    for number in range(1000):
        (root / f"usr/local/cuda-{number}/compat").mkdir(parents=True)
    looked: list[str] = []
    real = Rootfs.names

    def names(rootfs: Rootfs, directory: str) -> list[str]:
        looked.append(directory)
        return real(rootfs, directory)

    monkeypatch.setattr(Rootfs, "names", names)
    places().filters(Filters("/f/cuda", "/f/nvml"))
    assert len(looked) < 200


def test_a_link_that_no_spec_can_name_is_refused(root: Path, rootfs: Rootfs) -> None:
    """Written to a spec it would be another name, and the mount beside the one that counts."""
    (root / "link").symlink_to("/\udcff\udcfe")
    with pytest.raises(RootfsError, match="no UTF-8"):
        rootfs.resolve("/link")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"' + b'\\"' * 2_000_000, "Unterminated string"),
        (b'{"' + b"\\\\" * 2_000_000 + b"\\", "Unterminated string"),
        (b'{"a":' + b"[" * 4_000_000, "nested deeper than 64 levels"),
        (b'{"a":' * 700_000, "nested deeper than 64 levels"),
        (b'{"a":' + b"9" * 4_000_000 + b"}", "has over 1000 digits"),
        (b'{"a":-' + b"9" * 1001 + b"}", "has over 1000 digits"),
        (
            b"{" + b",".join(b'"%d":0' % n for n in range(300_000)) + b',"z":0,"z":1}',
            'the key "z" is a duplicate',
        ),
    ],
    ids=["quotes", "backslashes", "arrays", "objects", "digits", "negative", "keys"],
)
def test_a_spec_that_keeps_a_reader_busy_is_refused_in_one_pass(text: bytes, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        specs.parse(text)


@pytest.mark.parametrize("half", ["d83d", "D83D", "dbff", "dc00", "DFFF"])
@pytest.mark.parametrize("form", ['{"a":"\\u%s"}', '{"\\u%s":1}', '{"a":["x\\u%s\\u0041"]}'])
def test_half_of_a_surrogate_pair_is_refused(half: str, form: str) -> None:
    """Go makes it U+FFFD and yajl a question mark: two keys could be one to them."""
    with pytest.raises(SpecError, match="half of a surrogate pair"):
        specs.parse((form % half).encode())


def test_surrogate_pairs_and_their_lookalikes_are_kept() -> None:
    text = b'{"a":"\\ud83d\\ude00","b":"\\\\ud83d","\\uD83D\\uDE00":"\\uffff"}'
    document = {"a": "\U0001f600", "b": "\\ud83d", "\U0001f600": "\uffff"}
    assert specs.parse(text).document == document
    assert specs.parse(specs.dump(specs.parse(text))).document == document
