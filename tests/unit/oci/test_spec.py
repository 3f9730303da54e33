# SPDX-License-Identifier: Apache-2.0
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.oci import spec as specs
from gpushare.oci.spec import Spec, SpecError
from tests.unit.oci.examples import docker_spec

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


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


def test_brackets_in_strings_are_no_depth() -> None:
    document = {"a": "[" * 1000 + '"\\', "b": {"\\[": 1}}
    assert specs.parse(json.dumps(document).encode()).document == document


def test_over_4_mib_is_refused() -> None:
    padding = b" " * (4 << 20)
    assert fault(b"{}" + padding) == (
        "config.json: over 4 MiB; reduce the annotations and the environment"
    )
    assert specs.parse(b"{}" + padding[:-2]).document == {}


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "missing"])
def test_only_a_regular_file_is_read(bundle: tuple[Path, int], kind: str) -> None:
    path, fd = bundle
    if kind == "link":
        (path / "elsewhere").write_text("{}")
        (path / "config.json").symlink_to("elsewhere")
    elif kind == "pipe":
        os.mkfifo(path / "config.json")
    elif kind == "folder":
        (path / "config.json").mkdir()
    message = {
        "link": "cannot be opened (Too many levels of symbolic links)",
        "missing": "cannot be opened (No such file or directory)",
    }.get(kind, "not a regular file")
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


def test_nothing_is_written_when_nothing_changed(bundle: tuple[Path, int]) -> None:
    path, fd = bundle
    (path / "config.json").write_text('{ "a":\n1 }')
    inode = (path / "config.json").stat().st_ino
    loaded = specs.load(fd)
    assert not specs.store(fd, specs.parse(b'{"a":1}'), loaded)
    assert (path / "config.json").stat().st_ino == inode


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


@given(st.dictionaries(st.text(), JSON))
def test_unknown_keys_survive_in_order(document: dict[str, object]) -> None:
    data = specs.dump(Spec(document))
    read = specs.parse(data)
    assert read.document == document
    assert specs.dump(read) == data
    assert list(read.document) == list(document)


def test_the_last_of_two_equal_variables_counts() -> None:
    spec = Spec(docker_spec("A=1", "A=2=3"))
    assert spec.variables["A"] == "2=3"


@pytest.mark.parametrize(
    ("document", "path", "message"),
    [
        ({"process": {"env": [1]}}, ("process", "env"), "process.env is not a list of strings"),
        ({"mounts": ["x"]}, ("mounts",), "mounts is not a list of objects"),
        ({"mounts": {}}, ("mounts",), "mounts is not a list of objects"),
        ({"linux": []}, ("linux", "devices"), "linux is not an object"),
    ],
)
def test_a_part_of_the_wrong_kind_is_refused(
    document: dict[str, object], path: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        Spec(document).entries(*path)
    assert str(caught.value) == f"config.json: {message}; recreate the bundle"


def test_sandboxes_of_pods_are_distinguished_from_containers() -> None:
    name = "io.kubernetes.cri.container-type"
    assert Spec({"annotations": {name: "sandbox"}}).is_sandbox()
    assert not Spec({"annotations": {name: "container"}}).is_sandbox()
    assert not Spec({}).is_sandbox()


def test_privileged_follows_the_last_rule_for_all_devices() -> None:
    def privileged(*rules: dict[str, object]) -> bool:
        return Spec({"linux": {"resources": {"devices": list(rules)}}}).is_privileged()

    deny, allow = {"allow": False, "access": "rwm"}, {"allow": True, "access": "rwm"}
    assert not privileged(deny)
    assert privileged(deny, allow)
    assert privileged(deny, {**allow, "type": "a", "major": -1, "minor": -1})
    assert not privileged(deny, {"allow": True, "type": "c", "major": 1, "access": "rwm"})
    assert not privileged()
