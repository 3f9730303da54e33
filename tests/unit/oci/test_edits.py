# SPDX-License-Identifier: Apache-2.0
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.oci import edits as editing
from gpushare.oci import spec as specs
from gpushare.oci.edits import LISTS, RECORD, Device, Edits, Hook, Mount, SpecPath
from gpushare.oci.spec import Spec, SpecError
from tests.unit.oci.examples import DENY_ALL, NULL_RULE, SETKEY, docker_spec

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


def test_a_node_of_the_same_path_is_replaced() -> None:
    document = docker_spec()
    document["linux"]["devices"] = [{"path": "/dev/nvidia0", "type": "c", "major": 1, "minor": 3}]
    edited = editing.apply(Spec(document), EDITS)
    assert edited.document["linux"]["devices"] == [CARD.entry()]
    assert editing.strip(edited).document == document


def test_a_hook_without_env_or_timeout_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="inherits"):
        Hook("createRuntime", "/bin/true", ("true",), (), 5)
    with pytest.raises(ValueError, match="for ever"):
        Hook("createRuntime", "/bin/true", ("true",), ("A=1",), 0)


def test_apply_wants_a_stripped_spec() -> None:
    edited = editing.apply(Spec(docker_spec()), EDITS)
    with pytest.raises(ValueError, match="strip"):
        editing.apply(edited, EDITS)


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


def test_an_annotation_cannot_pass_for_the_record() -> None:
    document = docker_spec()
    document["annotations"][RECORD] = '{"hooks.prestart": {"added": []}}'
    assert editing.strip(Spec(document)).document == document


@pytest.mark.parametrize(
    "record",
    [
        1,
        [],
        {"mounts": 1},
        {"mounts": {"added": 1}},
        {"mounts": {"taken": [1]}},
        {"mounts": {"taken": [["x", {}]]}},
        {"linux.devices": {"made": [[1]]}},
    ],
)
def test_a_record_that_is_not_ours_is_refused(record: object) -> None:
    with pytest.raises(SpecError, match=RECORD):
        editing.strip(Spec({**docker_spec(), RECORD: record}))


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
