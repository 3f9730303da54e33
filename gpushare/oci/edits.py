# SPDX-License-Identifier: Apache-2.0
"""The edits of a spec, and how they are taken out again.

`apply` keeps a record of what it added and took out, in a property of its own at the top of the
document (a runtime ignores properties that it does not know). `strip` undoes what the record says
and nothing else, so a second pass starts from what the engine wrote, and ends at the same bytes.
An annotation would not do for the record: a pod's author may write annotations, and could have
another program's hook stripped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from gpushare.oci.spec import Spec, SpecError

RECORD: Final = "x-gpushare"

SpecPath: TypeAlias = tuple[str, ...]
SpecItem: TypeAlias = Any  # an element of one of a spec's lists: an object, or a string of env

ENV: Final[SpecPath] = ("process", "env")
MOUNTS: Final[SpecPath] = ("mounts",)
DEVICES: Final[SpecPath] = ("linux", "devices")
RULES: Final[SpecPath] = ("linux", "resources", "devices")
STAGES: Final = (
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
)
HOOKS: Final[tuple[SpecPath, ...]] = tuple(("hooks", stage) for stage in STAGES)
LISTS: Final[tuple[SpecPath, ...]] = (ENV, MOUNTS, DEVICES, RULES, *HOOKS)


@dataclass(frozen=True)
class Mount:
    """A mount. `destination` is a path in the container, without links in it."""

    source: str
    destination: str
    options: tuple[str, ...]
    type: str = "bind"

    def entry(self) -> dict[str, Any]:
        """Return it as the spec's `mounts` has it."""
        return {
            "destination": self.destination,
            "type": self.type,
            "source": self.source,
            "options": list(self.options),
        }

    @property
    def read_only(self) -> bool:
        """Whether the container may only read it."""
        return "ro" in self.options


@dataclass(frozen=True)
class Device:
    """A device node and the access to it; `mode` are its permission bits."""

    path: str
    type: Literal["c", "b"]
    major: int
    minor: int
    mode: int = 0o666
    uid: int = 0
    gid: int = 0

    def entry(self) -> dict[str, Any]:
        """Return it as the spec's `linux.devices` has it."""
        return {
            "path": self.path,
            "type": self.type,
            "major": self.major,
            "minor": self.minor,
            "fileMode": self.mode,
            "uid": self.uid,
            "gid": self.gid,
        }

    def rule(self) -> dict[str, Any]:
        """Return the cgroup rule that lets the container open it; not mknod."""
        return {
            "allow": True,
            "type": self.type,
            "major": self.major,
            "minor": self.minor,
            "access": "rw",
        }


@dataclass(frozen=True)
class Hook:
    """A program run at a stage of the container's life; `timeout` in seconds.

    `env` must not be empty: a hook without one inherits what the caller, or the image, has set
    (CVE-2025-23266), and an empty list is dropped when a Go program writes the spec again.
    """

    stage: Literal["createRuntime"]
    path: str
    args: tuple[str, ...]
    env: tuple[str, ...]
    timeout: int

    def __post_init__(self) -> None:
        if not self.env:
            raise ValueError("a hook without env inherits the caller's")
        if self.timeout <= 0:
            raise ValueError("a hook without a timeout can hold a container's start for ever")

    def entry(self) -> dict[str, Any]:
        """Return it as the spec's `hooks.STAGE` has it."""
        return {
            "path": self.path,
            "args": list(self.args),
            "env": list(self.env),
            "timeout": self.timeout,
        }


@dataclass(frozen=True)
class Edits:
    """The edits of one container. Mounts are made in this order, after those of the engine."""

    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[Device, ...] = ()
    hooks: tuple[Hook, ...] = ()


def apply(spec: Spec, edits: Edits, taken: Mapping[SpecPath, Sequence[int]] | None = None) -> Spec:
    """Return `spec` with `edits` in it and without the entries that `taken` names by index.

    `spec` must have been through `strip`. A name of `edits.env` that is set already is replaced; a
    device whose path is there already too. Where nothing changes, neither does the spec.
    """
    if RECORD in spec.document:
        raise ValueError("strip() comes before apply()")
    record: dict[str, Any] = {}
    edited = spec
    added = _added(edits)
    for path in LISTS:
        change = _Change(path, added.get(path, []), set((taken or {}).get(path, ())))
        edited = change.apply(edited, edits, record)
    if not record:
        return spec
    return edited.with_value((RECORD,), record)


def strip(spec: Spec) -> Spec:
    """Return `spec` as it was before `apply`; as it is, where it bears no record of ours.

    What others have added to the spec since stays. SpecError where the record is not one of ours.
    """
    record = spec.document.get(RECORD)
    if record is None:
        return spec
    if not isinstance(record, dict):
        raise SpecError(f"{RECORD} is not an object")
    stripped = spec.with_value((RECORD,), None)
    try:
        for path in reversed(LISTS):
            change = record.get(".".join(path))
            if change is not None:
                stripped = _undo(stripped, path, change)
    except (AttributeError, TypeError, ValueError) as error:
        raise SpecError(f"{RECORD} is not what gpushare wrote") from error
    return stripped


def seen(spec: Spec) -> Spec:
    """Return `spec` with a record of no change: it was looked at, and there was nothing to do.

    gpushare-hook asks for the record where hooks.d registers it. `spec` as for `apply`.
    """
    if RECORD in spec.document:
        return spec
    return spec.with_value((RECORD,), {})


def _added(edits: Edits) -> dict[SpecPath, list[SpecItem]]:
    added: dict[SpecPath, list[SpecItem]] = {
        ENV: [f"{name}={value}" for name, value in edits.env.items()],
        MOUNTS: [mount.entry() for mount in edits.mounts],
        DEVICES: [device.entry() for device in edits.devices],
        # After whatever is there: the deny-all rule comes first, and a later rule wins.
        RULES: [device.rule() for device in edits.devices],
    }
    for hook in edits.hooks:
        added.setdefault(("hooks", hook.stage), []).append(hook.entry())
    return added


@dataclass(frozen=True)
class _Change:
    """The change of one list of the spec."""

    path: SpecPath
    added: list[SpecItem]
    taken: set[int]

    def apply(self, spec: Spec, edits: Edits, record: dict[str, Any]) -> Spec:
        before = spec.entries(*self.path)
        taken = self.taken | self._replaced(before, edits)
        if not taken and not self.added:
            return spec
        note: dict[str, Any] = {"added": self.added}
        if taken:
            note["taken"] = [[index, before[index]] for index in sorted(taken)]
        missing = _missing(spec, self.path)
        if missing:
            note["made"] = [list(part) for part in missing]
        record[".".join(self.path)] = note
        kept = [entry for index, entry in enumerate(before) if index not in taken]
        return spec.with_value(self.path, kept + self.added)

    def _replaced(self, before: list[SpecItem], edits: Edits) -> set[int]:
        if self.path == ENV:
            return {i for i, entry in enumerate(before) if entry.partition("=")[0] in edits.env}
        if self.path == DEVICES:
            paths = {device.path for device in edits.devices}
            return {i for i, entry in enumerate(before) if entry.get("path") in paths}
        return set()


def _missing(spec: Spec, path: SpecPath) -> list[tuple[int, bool]]:
    """Return the parts of `path` that are not there, each with what stands in its place.

    `null` is not the same as missing, and must come back as what it was.
    """
    levels: list[tuple[int, bool]] = []
    for length in range(1, len(path) + 1):
        if spec.at(*path[:length]) is None:
            parent = spec.at(*path[: length - 1]) if length > 1 else spec.document
            was_null = parent is not None and path[length - 1] in parent
            levels.append((length, was_null))
    return levels


def _undo(spec: Spec, path: SpecPath, change: Mapping[str, Any]) -> Spec:
    entries = list(spec.entries(*path))
    for entry in change.get("added", ()):
        if entry in entries:
            # From the end: an equal entry of another program stands before ours.
            del entries[len(entries) - 1 - entries[::-1].index(entry)]
    for index, entry in change.get("taken", ()):
        entries.insert(index, entry)
    made = change.get("made")
    if entries or not made:
        return spec.with_value(path, entries)
    return _unmake(spec, path, made)


def _unmake(spec: Spec, path: SpecPath, levels: Sequence[tuple[int, bool]]) -> Spec:
    stripped = spec
    for length, was_null in sorted(levels, reverse=True):
        here = path[:length]
        rest = stripped.at(*here)
        if length < len(path) and rest:
            continue
        stripped = _with_null(stripped, here) if was_null else stripped.with_value(here, None)
    return stripped


def _with_null(spec: Spec, path: SpecPath) -> Spec:
    parent = dict(spec.at(*path[:-1]) if len(path) > 1 else spec.document)
    parent[path[-1]] = None
    return spec.with_value(path[:-1], parent) if len(path) > 1 else Spec(parent)
