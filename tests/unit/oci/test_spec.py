# SPDX-License-Identifier: Apache-2.0
"""A spec is read in proportion to its size, and edited."""

from __future__ import annotations

import json
import os
import stat
import struct
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.oci import cdi, driver_files, ldcache
from gpushare.oci import edits as editing
from gpushare.oci import spec as specs
from gpushare.oci.edits import LISTS, RECORD, Device, Edits, Hook, Mount, SpecPath
from gpushare.oci.elf import platform_of
from gpushare.oci.ldcache import LoaderCacheError
from gpushare.oci.loader import Filters, Places
from gpushare.oci.rootfs import Rootfs, RootfsError
from gpushare.oci.spec import Spec, SpecError
from tests.unit.oci.examples import DENY_ALL, NULL_RULE, SETKEY, docker_spec

from .examples import cdi_document


@pytest.fixture
def bundle(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield tmp_path, fd
    os.close(fd)


def fault(data: bytes) -> str:
    with pytest.raises(SpecError) as caught:
        specs.parse(data)
    return str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a": 1, "a": 2}', 'the key "a" is a duplicate'),
        (b'{"a": {"b": 1, "b": 1}}', 'the key "b" is a duplicate'),
        (b'{"a": NaN}', "NaN is not a number of JSON"),
        (b'{"a": -Infinity}', "-Infinity is not a number of JSON"),
        (b'{"a": 1e400}', "the number 1e400 is out of range"),
        (b'{"a": ' + b"[" * 64 + b"]" * 64 + b"}", "nested deeper than 64 levels"),
        (b"[" * 2_000_000, "nested deeper than 64 levels"),
        (b"{", "Expecting property name enclosed in double quotes at line 1 column 2"),
        (b"", "Expecting value at line 1 column 1"),
        (b"[]", "not an object"),
        (b'{"a": "\xff"}', "not UTF-8 at byte 7"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8 at byte 0"),
    ],
)
def test_ambiguous_json_is_refused(data: bytes, message: str) -> None:
    assert fault(data) == f"config.json: {message}; recreate the bundle"


def test_a_spec_of_endless_size_is_neither_read_nor_written(bundle: tuple[Path, int]) -> None:
    with pytest.raises(SpecError, match="over 4 MiB; reduce the annotations"):
        specs.parse(b" " * (specs.MAX_BYTES + 1))
    with pytest.raises(SpecError, match="would be over 4 MiB with what a GPU needs"):
        specs.store(bundle[1], Spec({"a": "x" * specs.MAX_BYTES}), Spec({}))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda path: path.symlink_to("/dev/null"),
            "cannot be opened (Too many levels of symbolic links)",
        ),
        (os.mkfifo, "not a regular file"),
        (Path.mkdir, "not a regular file"),
        (lambda _: None, "cannot be opened (No such file or directory)"),
    ],
)
def test_only_a_regular_file_is_read(
    bundle: tuple[Path, int], make: Callable[[Path], object], message: str
) -> None:
    path, fd = bundle
    make(path / "config.json")
    with pytest.raises(SpecError) as caught:
        specs.load(fd)
    assert str(caught.value) == f"config.json: {message}; recreate the bundle"


def test_a_replaced_spec_keeps_owner_and_mode_and_is_never_half_there(
    bundle: tuple[Path, int],
) -> None:
    path, fd = bundle
    config = path / "config.json"
    config.write_text(json.dumps(docker_spec()))
    config.chmod(0o640)
    before = config.stat()
    with config.open("rb") as reader:
        loaded = specs.load(fd)
        assert specs.store(fd, loaded.with_value(("hostname",), "other"), loaded)
        assert json.load(reader) == docker_spec()
    after = config.stat()
    assert json.loads(config.read_bytes()) == {**docker_spec(), "hostname": "other"}
    assert stat.S_IMODE(after.st_mode) == 0o640
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino
    assert [entry.name for entry in path.iterdir()] == ["config.json"]


def test_the_bundle_is_the_one_that_was_opened_whatever_its_name_is_now(
    bundle: tuple[Path, int],
) -> None:
    path, fd = bundle
    (path / "config.json").write_text("{}")
    moved = path.with_name("moved")
    path.rename(moved)
    path.mkdir()
    (path / "config.json").write_text('{"a trap": 1}')
    loaded = specs.load(fd)
    assert loaded.document == {}
    specs.store(fd, loaded.with_value(("a",), 1), loaded)
    assert json.loads((moved / "config.json").read_text()) == {"a": 1}
    assert json.loads((path / "config.json").read_text()) == {"a trap": 1}


def test_a_full_disk_leaves_the_old_spec_and_no_rest(
    bundle: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, fd = bundle
    (path / "config.json").write_text("{}")
    loaded = specs.load(fd)

    def full(_fd: int, _data: memoryview) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            specs.store(fd, loaded.with_value(("a",), 1), loaded)
    assert [entry.name for entry in path.iterdir()] == ["config.json"]
    assert (path / "config.json").read_text() == "{}"


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
        (with_sections(3)[: _HEADER.size + 20], "an extension beyond its end"),
    ],
)
def test_a_loader_cache_that_unfolds_to_gigabytes_is_refused(cache: bytes, message: str) -> None:
    assert len(cache) < ldcache.MAX_BYTES
    with at_most(64), pytest.raises(LoaderCacheError, match=message):
        ldcache.merge(cache, WANTED, FLAGS)


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


CARD = Device("/dev/nvidia0", "c", 195, 0)
FILTER = Mount("/usr/local/lib/gpushare/1/lib/libcuda.so.1", "/usr/lib64/libcuda.so.1", ("ro",))
CREATE = Hook("createRuntime", "/usr/bin/gpushare-hook", ("gpushare-hook",), ("PATH=/bin",), 10)
EDITS = Edits({"A": "1"}, (FILTER,), (CARD,), (CREATE,))


def test_edits_are_added_in_their_places() -> None:
    document = editing.apply(Spec(docker_spec("A=0", "B=0")), EDITS).document
    assert document["process"]["env"][2:] == ["B=0", "A=1"]
    assert document["mounts"][-1] == FILTER.entry()
    assert document["linux"]["devices"] == [CARD.entry()]
    assert document["linux"]["resources"]["devices"] == [
        DENY_ALL,
        NULL_RULE,
        {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"},
    ]
    assert document["hooks"] == {
        "prestart": [SETKEY],
        "createRuntime": [CREATE.entry()],
    }
    untouched = ("ociVersion", "root", "hostname", "annotations", "x-future")
    for name in untouched:
        assert document[name] == docker_spec()[name]
    assert document["process"]["x-future"] == docker_spec()["process"]["x-future"]


def test_a_hook_without_env_or_timeout_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="inherits"):
        Hook("createRuntime", "/bin/true", ("true",), (), 5)
    with pytest.raises(ValueError, match="for ever"):
        Hook("createRuntime", "/bin/true", ("true",), ("A=1",), 0)


def test_later_additions_of_others_stay() -> None:
    edited = editing.apply(Spec(docker_spec()), EDITS)
    theirs = {"destination": "/theirs", "type": "tmpfs", "source": "tmpfs"}
    hook = {"path": "/theirs"}
    later = edited.with_value(("mounts",), [*edited.entries("mounts"), theirs])
    stage = ("hooks", "createRuntime")
    later = later.with_value(stage, [hook, *later.entries(*stage)])
    stripped = editing.strip(later).document
    assert stripped["mounts"] == [*docker_spec()["mounts"], theirs]
    assert stripped["hooks"] == {"prestart": [SETKEY], "createRuntime": [hook]}


def test_a_note_that_nothing_was_to_do_goes_as_it_came() -> None:
    noted = editing.seen(Spec(docker_spec()))
    assert noted.document == {**docker_spec(), RECORD: {}}
    assert editing.seen(noted) == noted
    assert editing.strip(noted).document == docker_spec()
    edited = editing.apply(Spec(docker_spec()), EDITS)
    assert editing.seen(edited) == edited


def test_a_record_that_gpushare_did_not_write_is_refused() -> None:
    for record, why in (([], "is not an object"), ({"mounts": 3}, "is not what gpushare wrote")):
        noted = Spec({**docker_spec(), RECORD: record})
        with pytest.raises(SpecError, match=f"{RECORD} {why}"):
            editing.strip(noted)
        with pytest.raises(ValueError, match="strip"):
            editing.apply(noted, EDITS)


def test_an_annotation_cannot_pass_for_the_record() -> None:
    document = docker_spec()
    document["annotations"][RECORD] = '{"hooks.prestart": {"added": []}}'
    assert editing.strip(Spec(document)).document == document


WORDS = st.sampled_from(["a", "b", "/dev/nvidia0", "A=1", "A=2", "B", ""])
OBJECTS = st.dictionaries(st.sampled_from(["path", "source", "x"]), WORDS, max_size=2)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a spec in which any list may be there, be empty, be null or be missing."""
    document: dict[str, Any] = {"first": 1}
    for path in LISTS:
        entries = st.lists(WORDS if path[-1] == "env" else OBJECTS, max_size=3)
        here: Any = document
        for name in path[:-1]:
            if here is not None and name not in here and draw(st.booleans()):
                here[name] = draw(st.sampled_from([{}, None, {"kept": 1}]))
            here = None if here is None else here.get(name)
        if here is not None:
            value = draw(st.sampled_from(["missing", "null", "there"]))
            if value != "missing":
                here[path[-1]] = None if value == "null" else draw(entries)
    document["last"] = 1
    return document


@st.composite
def changes(
    draw: st.DrawFn, document: dict[str, Any]
) -> tuple[Edits, Mapping[SpecPath, list[int]]]:
    """Draw edits of `document`, and entries of it to take out."""
    edits = Edits(
        draw(st.sampled_from([{}, {"A": "1"}, {"B": "2", "C": ""}])),
        tuple(draw(st.lists(st.just(FILTER), max_size=2))),
        tuple(draw(st.lists(st.just(CARD), max_size=1))),
        tuple(draw(st.lists(st.sampled_from([CREATE, replace(CREATE, timeout=5)]), max_size=3))),
    )
    taken = {
        path: [i for i in range(len(Spec(document).entries(*path))) if draw(st.booleans())]
        for path in LISTS
    }
    return edits, taken


@given(st.data())
def test_strip_undoes_apply_to_the_byte(data: st.DataObject) -> None:
    document = data.draw(documents())
    edits, taken = data.draw(changes(document))
    before = specs.dump(Spec(document))
    edited = editing.apply(Spec(document), edits, taken)
    assert specs.dump(Spec(document)) == before
    assert specs.dump(editing.strip(specs.parse(specs.dump(edited)))) == before


@given(st.data())
def test_a_second_pass_changes_nothing(data: st.DataObject) -> None:
    document = data.draw(documents())
    edits, taken = data.draw(changes(document))
    first = specs.dump(editing.apply(Spec(document), edits, taken))
    original = editing.strip(specs.parse(first))
    assert specs.dump(editing.apply(original, edits, taken)) == first
