# SPDX-License-Identifier: Apache-2.0
"""The state of a container as its runtime tells it. Source: OCI runtime-spec, runtime.md#state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpushare.oci.strict_json import parse_object


class StateError(ValueError):
    """Bytes that are no container's state."""


@dataclass(frozen=True)
class State:
    """A container's state. `pid` is the host's, 0 once it has ended (and in a poststop hook)."""

    id: str
    status: str
    pid: int
    bundle: str
    annotations: Mapping[str, str]


def parse_state(data: bytes) -> State:
    """Return the state that a runtime printed or gave to a hook; StateError where it is none."""
    try:
        state = parse_object(data)
    except ValueError as error:
        raise StateError(f"not a container's state: {error}") from error
    pid = state.get("pid") or 0
    if type(pid) is not int or pid < 0:
        raise StateError(f"not a container's state: pid is {pid!r}")
    annotations = state.get("annotations") or {}
    if not isinstance(annotations, dict):
        raise StateError("not a container's state: annotations is not an object")
    return State(
        _text(state, "id"), _text(state, "status"), pid, _text(state, "bundle"), annotations
    )


def _text(state: Mapping[str, Any], name: str) -> str:
    value = state.get(name)
    if not isinstance(value, str) or not value:
        raise StateError(f"not a container's state: {name} is missing")
    return value
