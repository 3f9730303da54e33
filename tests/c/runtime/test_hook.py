# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpushare.oci import edits
from gpushare.oci import spec as specs

from .fake_daemon import ACK, DONE, START, ScriptedDaemon, refusal
from .spec import Spec, bundle, with_annotation, with_device

KEY = "0011223344556677"
STATE = {
    "ociVersion": "1.0.2",
    "id": "ID",
    "status": "creating",
    "pid": 4711,
    "bundle": "/b",
    "annotations": {"pid": "12", "id": "another"},
}


class HookBundle:
    def __init__(self, root: Path, hook: Path) -> None:
        self.socket = root / "control.sock"
        self.bundle = root / "bundle"
        self._hook = hook

    def run(self, stage: str, state: Any, *, keyed: bool = True) -> tuple[int, str]:
        """Return exit status and stderr; nothing may be on stdout."""
        words = ["--socket", str(self.socket), "--key", KEY] if keyed else []
        done = subprocess.run(
            [self._hook, stage, *words],
            input=state if isinstance(state, bytes) else json.dumps(state).encode(),
            capture_output=True,
            env={"PATH": "/bin"},
            check=False,
        )
        assert done.stdout == b""
        return done.returncode, done.stderr.decode()


@pytest.fixture
def place(tmp_path: Path, hook: Path) -> HookBundle:
    return HookBundle(tmp_path, hook)


def test_create_runtime_binds_the_pid(place: HookBundle) -> None:
    with ScriptedDaemon(place.socket, [ACK, DONE]) as daemon:
        assert place.run("createRuntime", STATE) == (0, "")
    assert daemon.asked[0].request == {"op": "bind", "key": KEY, "id": "ID", "pid": 4711}


def test_a_refused_binding_fails_the_container(place: HookBundle) -> None:
    with ScriptedDaemon(place.socket, [ACK, refusal("no reservation of ID")]):
        assert place.run("createRuntime", STATE) == (1, "gpushare: no reservation of ID\n")


def test_no_daemon_fails_the_container_with_what_to_do(place: HookBundle) -> None:
    status, said = place.run("createRuntime", STATE)
    assert status == 1
    assert START in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (b"", "gpushare: the container's state on stdin is empty\n"),
        (b"{", "is not valid JSON at byte 1"),
        (b"[]", "has no ID"),
        (b"{}", "has no ID"),
        ({"id": 1, "pid": 1}, "has no ID"),
        ({"id": "a\0b", "pid": 1}, "has no ID"),
        ({"id": "a" * 1024, "pid": 1}, "has no ID"),
        ({"id": "ID"}, "has no PID"),
        ({"id": "ID", "pid": 0}, "has no PID"),
        ({"id": "ID", "pid": -1}, "has no PID"),
        ({"id": "ID", "pid": "4711"}, "has no PID"),
        (b'{"id": "ID", "pid": 1.5}', "has no PID"),
        (b'{"id": "ID", "pid": 12345678901234567}', "has no PID"),
        (b'{"id": "' + b"x" * (1 << 20) + b'"}', "is larger than 1048576 bytes"),
        (b'{"a":' * 200_000, "nested too deep"),
    ],
)
def test_a_state_that_is_none_fails_the_container(place: HookBundle, state: Any, said: str) -> None:
    with ScriptedDaemon(place.socket, [ACK, DONE]) as daemon:
        status, stderr = place.run("createRuntime", state)
    assert (status, daemon.connections) == (1, 0)
    assert said in stderr


@pytest.mark.parametrize(
    "words",
    [
        "",
        "poststop",
        "createRuntime --socket",
        "createRuntime --socket /s",
        "createRuntime --key k",
        "createRuntime --else x",
    ],
)
def test_other_arguments_fail_the_container(hook: Path, words: str) -> None:
    done = subprocess.run([hook, *words.split()], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gpushare: usage: gpushare-hook createRuntime")


# --- registered by hooks.d, where no key is given ---

REGISTERED = {"path": "/h", "args": ["gpushare-hook", "createRuntime"]}
SANDBOX = {"io.kubernetes.cri-o.ContainerType": "sandbox"}


def annotated(**annotations: str) -> Spec:
    spec = with_annotation("gpushare.io/memory")
    spec["annotations"] |= annotations
    return spec | {"hooks": {"createRuntime": [REGISTERED]}}


def test_an_annotated_container_must_have_gone_through_the_launcher(place: HookBundle) -> None:
    state = STATE | {"bundle": str(bundle(place.bundle, annotated()))}
    status, said = place.run("createRuntime", state, keyed=False)
    assert status == 1
    assert "Start it with --runtime gpushare" in said
    # An edit, or the note that there was none to make: another container of the pod may ask.
    bundle(place.bundle, dict(edits.seen(specs.Spec(annotated())).document))
    assert place.run("createRuntime", state, keyed=False) == (0, "")


def test_a_sandbox_bears_the_annotations_of_its_pod_and_starts(place: HookBundle) -> None:
    state = STATE | {"bundle": str(bundle(place.bundle, annotated(**SANDBOX)))}
    assert place.run("createRuntime", state, keyed=False) == (0, "")
    with_a_card = annotated(**SANDBOX)
    with_a_card["linux"] = with_device("/dev/nvidia0")["linux"]
    bundle(place.bundle, with_a_card)
    assert place.run("createRuntime", state, keyed=False)[0] == 1


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--root=/x", "create", "--bundle", "BUNDLE", "ID"], 0),
        (["run", "-bBUNDLE", "ID"], 0),
        (["start", "--bundle", "BUNDLE", "ID"], 1),
        (["create", "--bundle", "relative", "ID"], 1),
        (["create", "ID"], 1),
        (["create", *["x"] * 300, "--bundle", "BUNDLE", "ID"], 1),
    ],
)
def test_the_runtime_is_queried_if_the_state_names_the_root_as_its_bundle(
    place: HookBundle, hook: Path, words: list[str], status: int
) -> None:
    """Crun does under a user namespace; what it was called with has the bundle."""
    named = str(bundle(place.bundle, dict(edits.seen(specs.Spec(annotated())).document)))
    called = [word.replace("BUNDLE", named) for word in words]
    script = '"$0" createRuntime; exit $?'
    done = subprocess.run(
        ["/bin/sh", "-c", script, str(hook), *called],
        input=json.dumps(STATE | {"bundle": "/"}).encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == status, done.stderr


@pytest.mark.parametrize("text", [None, b"", b'{"x-gpushare":{},"process":'])
def test_a_spec_that_cannot_be_read_is_no_proof(place: HookBundle, text: bytes | None) -> None:
    state = STATE | {"bundle": str(bundle(place.bundle, annotated()))}
    if text is None:
        (place.bundle / "config.json").unlink()
    else:
        (place.bundle / "config.json").write_bytes(text)
    assert place.run("createRuntime", state, keyed=False)[0] == 1
