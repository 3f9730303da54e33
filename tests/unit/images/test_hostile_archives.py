# SPDX-License-Identifier: Apache-2.0
"""An archive that anybody may have made takes little time and memory, and ends in one sentence."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import tarfile
import tracemalloc
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Final

import pytest

from gpushare.images import NotFound, archive, open_image, tar_entries
from gpushare.images.tar_entries import ByteReader, ReadBudget
from tests.unit.images.test_archive import (
    CONFIG,
    CUDART,
    LIB,
    layer,
    link,
    names,
    oci,
    saved,
    write_archive,
)

MOST_MEMORY: Final = 16 << 20


def header(name: str, size: int, flag: bytes, *, binary: bool = False) -> bytes:
    """Return a header by hand, as no library writes it."""
    field = size.to_bytes(12, "big", signed=size < 0) if binary else b"%011o\0" % size
    if binary and size >= 0:
        field = bytes((field[0] | 0x80,)) + field[1:]
    block = bytearray(512)
    block[0 : len(name)] = name.encode()
    block[100:108] = block[108:116] = block[116:124] = b"0000644\0"
    block[124:136], block[136:148], block[156:157] = field, b"%011o\0" % 0, flag
    block[257:265] = b"ustar\x0000"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def refusal(path: Path) -> str:
    """Return why the archive at `path` is refused: one line."""
    with pytest.raises(NotFound) as raised, open_image(str(path)):
        pass
    assert "\n" not in str(raised.value)
    return str(raised.value).removeprefix(str(path))


def index_of(*digests: str) -> bytes:
    return json.dumps({"manifests": [{"digest": f"sha256:{one}"} for one in digests]}).encode()


def test_an_index_that_names_itself_is_refused(tmp_path: Path) -> None:
    files = {"index.json": index_of("a"), "blobs/sha256/a": index_of("b")}
    files["blobs/sha256/b"] = index_of("a")
    path = write_archive(tmp_path / "image.tar", files)
    assert "an index refers to itself" in refusal(path)


def test_indexes_inside_one_another_are_bounded(tmp_path: Path) -> None:
    files = {f"blobs/sha256/{number}": index_of(str(number + 1)) for number in range(50)}
    path = write_archive(tmp_path / "image.tar", {"index.json": index_of("0"), **files})
    assert refusal(path).startswith(": its indexes are nested more than 8 deep. Load it into an")


@pytest.mark.parametrize("flag", [b"L", b"K", b"x", b"X", b"g"])
@pytest.mark.parametrize("place", ["archive", "layer"])
def test_a_header_of_gigabytes_is_refused_before_it_is_read(
    flag: bytes, place: str, tmp_path: Path
) -> None:
    bomb, path = header("long", 4 << 30, flag), tmp_path / "image.tar"
    if place == "archive":
        write(path, bomb)
        os.truncate(path, (4 << 30) + 1024)  # a hole, which takes no disk
    else:
        saved(path, bomb)
    tracemalloc.start()
    try:
        assert "one of its headers is larger than 1 MiB" in refusal(path)
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()


def test_a_compressed_bomb_is_read_in_little_memory_and_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tar_entries, "MOST_UNPACKED_BYTES", 64 << 20)
    data = BytesIO()
    with gzip.GzipFile(fileobj=data, mode="wb", compresslevel=1) as packed:
        packed.write(header("huge", 80 << 20, b"0"))
        for _ in range(80):
            packed.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        path = saved(tmp_path / "image.tar", data.getvalue())
        assert "it unpacks to more than 64 MiB" in refusal(path)
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()


def test_entries_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_entries, "MOST_ENTRIES", 100)
    path = saved(tmp_path / "image.tar", layer(*(f"etc/{number}" for number in range(200))))
    assert "it has more than 100 entries" in refusal(path)
    monkeypatch.setattr(archive, "_MOST_BLOBS", 10)
    assert "it has more than 10 files" in refusal(
        write(tmp_path / "many.tar", layer(*map(str, range(20))))
    )


def test_time_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_entries, "MOST_SECONDS", 0.0)
    assert "reading it takes longer than 0 s" in refusal(saved(tmp_path / "i.tar", layer("a")))


def test_layers_are_bounded(tmp_path: Path) -> None:
    manifest = json.dumps([{"Config": "config.json", "Layers": ["0.tar"] * 100_000}]).encode()
    files = {"0.tar": layer("a"), "config.json": json.dumps(CONFIG).encode()}
    path = write_archive(tmp_path / "image.tar", {**files, "manifest.json": manifest})
    assert "it has more than 512 layers" in refusal(path)


@pytest.mark.parametrize("text", ["[" * 500_000, '{"a":' * 500_000])
def test_a_document_nested_too_deeply_is_refused(text: str, tmp_path: Path) -> None:
    path = write_archive(tmp_path / "image.tar", {"manifest.json": text.encode()})
    assert "manifest.json is nested too deeply" in refusal(path)


def test_documents_are_bounded_one_by_one_and_in_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_MOST_JSON", 1000)
    monkeypatch.setattr(archive, "_MOST_JSON_IN_ALL", 3000)
    large = write_archive(tmp_path / "large.tar", {"manifest.json": b"[" + b" " * 1000})
    assert "manifest.json is larger than 1000 B" in refusal(large)
    many = write_archive(tmp_path / "many.tar", {f"{name}.json": b"[" * 900 for name in range(9)})
    assert "its documents are larger than 2.9 KiB in all" in refusal(many)


@pytest.mark.parametrize("size", [-512, -(1 << 40), 1 << 63, 1 << 80])
def test_a_size_that_no_file_has_is_refused(size: int, tmp_path: Path) -> None:
    assert "impossible size" in refusal(
        saved(tmp_path / "i.tar", header("a", size, b"0", binary=True))
    )


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_link_to_itself_is_refused(kind: bytes, tmp_path: Path) -> None:
    loop = layer(link("manifest.json", "manifest.json", kind))
    assert "neither a manifest.json" in refusal(write(tmp_path / "i.tar", loop))
    manifest = json.dumps([{"Config": "config.json", "Layers": ["a"]}]).encode()
    files = {"manifest.json": manifest, "config.json": b"{}"}
    path = write_archive(
        tmp_path / "layer.tar", files, [link("a", "b", kind), link("b", "a", kind)]
    )
    assert "a link leads to itself" in refusal(path)


@pytest.mark.parametrize(
    "config",
    [b"[]", b"7", b"null", b'{"config": []}', b'{"config": {"Env": [1]}}', b'{"config": "x"}'],
)
def test_a_configuration_of_another_form_is_refused_or_empty(config: bytes, tmp_path: Path) -> None:
    manifest = json.dumps([{"Config": "config.json", "Layers": []}]).encode()
    files = {"config.json": config, "manifest.json": manifest}
    path = write_archive(tmp_path / "image.tar", files)
    if config == b'{"config": []}':
        with open_image(str(path)) as found:
            assert not found.variables
    else:
        assert "is not an image saved by" in refusal(path)


def test_names_that_no_file_system_has_are_left_out(tmp_path: Path) -> None:
    nul = tarfile.TarInfo("a")
    nul.pax_headers = {"path": f"{LIB}/libcudart.so.12\x00"}
    many: list[str | tarfile.TarInfo] = [
        f"{LIB}/{'a' * 300}/libcudart.so.12",
        "a/" * 20_000,
        nul,
        link(f"{LIB}/x", "y" * 5000),
    ]
    assert names(saved(tmp_path / "i.tar", layer(*many, CUDART)), f"/{LIB}") == [
        "libcudart.so.12.4.127"
    ]


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress, None])
@pytest.mark.parametrize("whole", [True, False])
def test_every_compression_is_read(
    compress: Callable[[bytes], bytes] | None, whole: bool, tmp_path: Path
) -> None:
    one = layer(f"{LIB}/", CUDART)
    path = saved(tmp_path / "image.tar", compress(one) if compress and not whole else one)
    if compress and whole:
        path.write_bytes(compress(path.read_bytes()))
    assert names(path, f"/{LIB}") == ["libcudart.so.12.4.127"]


def test_zstd_is_refused_by_its_name(tmp_path: Path) -> None:
    path = saved(tmp_path / "image.tar", b"\x28\xb5\x2f\xfd" + bytes(20))
    assert "compressed with zstd, which is not supported; use gzip" in refusal(path)


def test_a_layer_behind_a_link_is_found_as_docker_wrote_them_once(tmp_path: Path) -> None:
    manifest = [{"Config": "config.json", "Layers": ["a/layer.tar", "b/layer.tar"]}]
    files = {
        "a/layer.tar": layer(CUDART),
        "config.json": json.dumps(CONFIG).encode(),
        "./manifest.json": json.dumps(manifest).encode(),
    }
    links = [link("b/layer.tar", "../a/layer.tar")]
    path = write_archive(tmp_path / "image.tar", files, links)
    assert names(path, f"/{LIB}") == ["libcudart.so.12.4.127"]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_entries_are_those_of_tarfile(form: int) -> None:
    data = BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=form) as tar:
        longest = 150 if form == tarfile.USTAR_FORMAT else 240
        for number, length in enumerate((1, 90, 99, 100, 101, longest)):
            info = tarfile.TarInfo("/".join(["d" * 40] * 5 + ["n" * 40])[-length:].strip("/"))
            info.size = number * 511
            info.mtime = number + 0.5  # in pax a record of its own
            tar.addfile(info, BytesIO(bytes(info.size)))
            tar.addfile(link(f"l{number}", "t" * min(length, 99)))
        folder = tarfile.TarInfo("é/folder")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    data.seek(0)
    with tarfile.open(fileobj=data) as tar:
        expected = [(one.name.rstrip("/"), one.linkname, one.size) for one in tar]
    data.seek(0)
    read = tar_entries.tar_entries(ByteReader(data.read), ReadBudget())
    assert [(one.name.rstrip("/"), one.target, one.size) for one in read] == expected


def test_an_archive_is_opened_twice_at_most(tmp_path: Path) -> None:
    """A compressed archive cannot be entered in the middle, so a third reading would show."""
    path = oci(tmp_path / "image.tar", layer(CUDART))
    budget = ReadBudget()
    with path.open("rb") as file, archive.LayerIndex.made() as made:
        archive._Archive(file, made, budget).read()
    with tarfile.open(path) as tar:
        in_archive = len(tar.getnames())
    spent = tar_entries.MOST_ENTRIES - budget.entries
    assert spent <= 2 * (in_archive + 1) + 2
