# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from gpushare.oci.state import State, StateError, parse_state


def test_a_state_as_runc_and_crun_give_it() -> None:
    state = {"id": "c", "status": "creating", "pid": 7, "bundle": "/b", "annotations": {"a": "1"}}
    assert parse_state(json.dumps(state).encode()) == State("c", "creating", 7, "/b", {"a": "1"})


@pytest.mark.parametrize("pid", [{}, {"pid": 0}, {"pid": None}])
def test_after_the_end_there_is_no_pid(pid: dict[str, object]) -> None:
    state = {"id": "c", "status": "stopped", "bundle": "/b", **pid}
    assert parse_state(json.dumps(state).encode()).pid == 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a container's state: Expecting value at line 1 column 1"),
        (b'{"status": "x", "bundle": "/b"}', "not a container's state: id is missing"),
        (
            b'{"id": "c", "status": "x", "bundle": "/b", "pid": "7"}',
            "not a container's state: pid is '7'",
        ),
        (
            b'{"id": "c", "status": "x", "bundle": "/b", "annotations": [1]}',
            "not a container's state: annotations is not an object",
        ),
    ],
)
def test_what_is_no_state_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(StateError) as caught:
        parse_state(data)
    assert str(caught.value) == message
