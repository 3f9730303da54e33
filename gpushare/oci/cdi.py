# SPDX-License-Identifier: Apache-2.0
"""A CDI spec: the device nodes, mounts and variables that make a driver work in a container.

Of versions 0.3 to 1.x the parts that nvidia-ctk writes are read. Hooks are reported and never run:
this package does their work (links, the loader's cache) without running anything in a rootfs.
Source: container-device-interface, SPEC.md.
"""

from __future__ import annotations

import functools
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from gpushare.oci.bounded_read import parse_object
from gpushare.oci.edits import Device

MAX_BYTES: Final = 4 << 20

_VERSION: Final = re.compile(r"(0\.([3-9]|[1-9][0-9]+)|1\.[0-9]+)\.[0-9]+", re.ASCII)
_KIND: Final = re.compile(r"[A-Za-z0-9.-]+/[A-Za-z0-9._-]+", re.ASCII)


class CdiError(ValueError):
    """A CDI spec that cannot be used, or a device that it does not have."""


@dataclass(frozen=True)
class CdiDeviceNode:
    """A device node; without `major` and `minor` it is what the host has at `host_path`."""

    path: str
    host_path: str
    type: Literal["c", "b"] | None = None
    major: int | None = None
    minor: int | None = None

    def device(self) -> Device:
        """Return the node with its numbers; CdiError where the host has no such device."""
        if self.major is not None and self.minor is not None:
            return Device(self.path, self.type or "c", self.major, self.minor)
        try:
            status = Path(self.host_path).stat()
        except OSError as error:
            raise CdiError(f"{self.host_path}: {error.strerror}; is the driver loaded?") from error
        if not (stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)):
            raise CdiError(f"{self.host_path} is not a device")
        kind: Literal["c", "b"] = "c" if stat.S_ISCHR(status.st_mode) else "b"
        return Device(self.path, kind, os.major(status.st_rdev), os.minor(status.st_rdev))


@dataclass(frozen=True)
class CdiMount:
    """A file or folder of the host in the container."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class CdiEdits:
    """One `containerEdits`. `not_taken` names what is in it and is not done, hooks above all."""

    env: tuple[str, ...] = ()
    nodes: tuple[CdiDeviceNode, ...] = ()
    mounts: tuple[CdiMount, ...] = ()
    not_taken: tuple[str, ...] = ()

    def __add__(self, other: CdiEdits) -> CdiEdits:
        """Return both, each node and mount once."""
        return CdiEdits(
            _once(self.env + other.env),
            _once(self.nodes + other.nodes),
            _once(self.mounts + other.mounts),
            _once(self.not_taken + other.not_taken),
        )


@dataclass(frozen=True)
class CdiSpec:
    """A CDI spec: edits for every container, and more for each device by name."""

    version: str
    kind: str
    edits: CdiEdits
    devices: Mapping[str, CdiEdits]

    def edits_for(self, cards: Sequence[Sequence[str]]) -> CdiEdits:
        """Return the edits for `cards`, each a tuple of its possible names: `("GPU-4f1c...", "0")`.

        CdiError names the card that is missing in the spec.
        """
        edits = self.edits
        for names in cards:
            listed = next((name for name in names if name in self.devices), None)
            if listed is None and self.devices.keys() == {"all"}:
                listed = "all"  # one node is every card (WSL 2)
            if listed is None:
                known = ", ".join(sorted(self.devices)) or "none"
                raise CdiError(
                    f"{self.kind} has no device {' or '.join(names)} (it has {known}); "
                    "make the spec again, e.g. nvidia-ctk cdi generate"
                )
            edits += self.devices[listed]
        return edits

    @functools.cached_property
    def everything(self) -> CdiEdits:
        """The edits of all devices together: every node and mount that this driver may bring."""
        edits = self.edits
        for device in self.devices.values():
            edits += device
        return edits


def load(path: Path, parse_yaml: Callable[[str], object]) -> CdiSpec:
    """Return the spec in the file at `path`: JSON by its suffix, else YAML.

    `parse_yaml` is e.g. yaml.safe_load; any ValueError or exception of its own it raises passes
    through. CdiError names the file and the fault; OSError as open(2).
    """
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise CdiError(f"{path}: over {MAX_BYTES >> 20} MiB")
    try:
        is_json = path.suffix == ".json"
        return from_document(parse_object(data) if is_json else parse_yaml(data.decode()))
    except ValueError as error:
        raise CdiError(f"{path}: {error}") from error


def from_document(document: object) -> CdiSpec:
    """Return the spec that a parsed document is; CdiError says which part of it is wrong."""
    top = _object(document, "the spec")
    version, kind = _text(top, "cdiVersion"), _text(top, "kind")
    if not _VERSION.fullmatch(version):
        raise CdiError(f"cdiVersion {version!r} is not one of 0.3 to 1.x")
    if not _KIND.fullmatch(kind):
        raise CdiError(f"kind {kind!r} is not VENDOR/CLASS")
    devices: dict[str, CdiEdits] = {}
    for entry in _objects(top, "devices"):
        name = _text(entry, "name")
        if name in devices:
            raise CdiError(f"device {name!r} is listed twice")
        devices[name] = _edits(entry.get("containerEdits"), f"device {name}")
    return CdiSpec(version, kind, _edits(top.get("containerEdits"), "the spec"), devices)


def _edits(value: object, where: str) -> CdiEdits:
    if value is None:
        return CdiEdits()
    edits = _object(value, f"containerEdits of {where}")
    env = edits.get("env") or []
    if not isinstance(env, list) or not all(isinstance(e, str) and "=" in e for e in env):
        raise CdiError(f"env of {where} is not a list of NAME=VALUE")
    not_taken = [_hook(hook) for hook in _objects(edits, "hooks")]
    not_taken += sorted(set(edits) - {"env", "deviceNodes", "mounts", "hooks"})
    return CdiEdits(
        tuple(env),
        tuple(_node(node) for node in _objects(edits, "deviceNodes")),
        tuple(_mount(mount) for mount in _objects(edits, "mounts")),
        tuple(not_taken),
    )


def _node(entry: Mapping[str, Any]) -> CdiDeviceNode:
    path = _absolute(entry, "path")
    host_path = _absolute(entry, "hostPath") if entry.get("hostPath") else path
    kind = entry.get("type")
    if kind not in (None, "", "c", "u", "b"):
        raise CdiError(f"{path}: type {kind!r} is not a device type")
    major, minor = entry.get("major"), entry.get("minor")
    for number in (major, minor):
        if number is not None and (type(number) is not int or not 0 <= number < 1 << 20):
            raise CdiError(f"{path}: {number!r} is not a device number")
    if major is None or minor is None or (major, minor) == (0, 0):
        return CdiDeviceNode(path, host_path)
    return CdiDeviceNode(path, host_path, "b" if kind == "b" else "c", major, minor)


def _mount(entry: Mapping[str, Any]) -> CdiMount:
    options = entry.get("options") or []
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise CdiError(f"options of the mount {entry.get('hostPath')!r} are not a list of words")
    return CdiMount(_absolute(entry, "hostPath"), _absolute(entry, "containerPath"), tuple(options))


def _hook(entry: Mapping[str, Any]) -> str:
    args = entry.get("args") or [entry.get("path")]
    return f"hook {entry.get('hookName')}: {' '.join(str(arg) for arg in args)}"


def _object(value: object, subject: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise CdiError(f"{subject} is not an object")
    return value


def _objects(parent: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = parent.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise CdiError(f"{name} is not a list")
    return [_object(entry, f"an entry of {name}") for entry in value]


def _text(parent: Mapping[str, Any], name: str) -> str:
    value = parent.get(name)
    if not isinstance(value, str) or not value:
        raise CdiError(f"{name} is missing or not a word")
    return value


def _absolute(parent: Mapping[str, Any], name: str) -> str:
    path = _text(parent, name)
    if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise CdiError(f"{name} {path!r} is not an absolute path")
    return path


def _once(entries: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(entries))
