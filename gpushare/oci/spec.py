# SPDX-License-Identifier: Apache-2.0
"""A container's config.json: loaded and replaced through its bundle's descriptor, never by a path.

What this program does not know stays in it, in its order. Source: OCI runtime-spec, config.md; its
"Extensibility" section has every runtime ignore properties that it does not know.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare.oci.bounded_read import parse_object, read_at_most, replace_file

CONFIG: Final = "config.json"
MAX_BYTES: Final = 4 << 20

_SANDBOX: Final = (
    ("io.kubernetes.cri.container-type", "sandbox"),
    ("io.kubernetes.cri-o.ContainerType", "sandbox"),
)


class SpecError(ValueError):
    """An unusable config.json; the message names the file, the fault and the fix."""

    def __init__(self, fault: str, fix: str = "recreate the bundle") -> None:
        super().__init__(f"{CONFIG}: {fault}; {fix}")


@dataclass(frozen=True)
class Spec:
    """A config.json. Every change makes a new Spec; what did not change is shared, not copied."""

    document: Mapping[str, Any]

    @property
    def annotations(self) -> Mapping[str, str]:
        """The container's annotations; empty where there are none."""
        section = self.at("annotations")
        if section is None:
            return {}
        if not isinstance(section, dict) or not all(isinstance(v, str) for v in section.values()):
            raise SpecError("annotations is not an object of strings")
        return section

    @property
    def env(self) -> Sequence[str]:
        """process.env as it stands: `NAME=VALUE`, a name possibly more than once."""
        return self.entries("process", "env")

    @property
    def variables(self) -> dict[str, str]:
        """process.env by name; the last of several with one name counts, as in runc."""
        return {name: value for name, _, value in (entry.partition("=") for entry in self.env)}

    @property
    def mount_label(self) -> str:
        """linux.mountLabel: the SELinux label of mounts, empty where there is none."""
        label = self.at("linux", "mountLabel")
        return label if isinstance(label, str) else ""

    @property
    def root(self) -> str:
        """root.path: absolute, or relative to the bundle."""
        path = self.at("root", "path")
        if not isinstance(path, str) or not path:
            raise SpecError("root.path is missing")
        return path

    def is_sandbox(self) -> bool:
        """Whether this is the pause container of a pod, which never gets a GPU."""
        return any(self.annotations.get(name) == value for name, value in _SANDBOX)

    def is_kubernetes(self) -> bool:
        """Whether a kubelet requested this container."""
        return any(name.startswith("io.kubernetes.cri") for name in self.annotations)

    def is_podman(self) -> bool:
        """Whether podman made this container (containers/podman, pkg/specgen: libpod's mark)."""
        return self.annotations.get("io.container.manager") == "libpod"

    def is_privileged(self) -> bool:
        """Whether the cgroup lets the container at every device, as `docker run --privileged`."""
        for rule in reversed(self.entries("linux", "resources", "devices")):
            if rule.get("type", "a") in ("a", "") and rule.get("major") in (None, -1):
                return rule.get("allow") is True
        return False

    def may_mount(self) -> bool:
        """Whether the container has CAP_SYS_ADMIN, in any of its sets."""
        return self.has_capability("CAP_SYS_ADMIN")

    def has_capability(self, name: str) -> bool:
        """Whether the container has the capability, in any of its sets."""
        sets = self.at("process", "capabilities") or {}
        return f'"{name}"' in json.dumps(sets).upper()  # crun takes small letters too

    def namespaces(self, kind: str) -> list[str]:
        """Return the paths of its namespaces of `kind`; one that is made for it has none: ""."""
        entries = self.entries("linux", "namespaces")
        return [entry.get("path") or "" for entry in entries if entry.get("type") == kind]

    def at(self, *path: str) -> Any:
        """Return the value at `path`; None where it, or a part of the way, is missing or null."""
        value: Any = self.document
        for name in path:
            if value is None:
                return None
            if not isinstance(value, Mapping):
                raise SpecError(f"{'.'.join(path[:-1])} is not an object")
            value = value.get(name)
        return value

    def entries(self, *path: str) -> list[Any]:
        """Return the list at `path`; empty where it is missing or null.

        The lists of a spec hold objects, process.env strings; SpecError where one does not.
        """
        section = self.at(*path)
        if section is None:
            return []
        kind, called = (str, "strings") if path[-1] == "env" else (dict, "objects")
        if not isinstance(section, list) or not all(isinstance(entry, kind) for entry in section):
            raise SpecError(f"{'.'.join(path)} is not a list of {called}")
        return section

    def with_value(self, path: Sequence[str], value: Any) -> Spec:
        """Return the spec with `value` at `path`, made where it is missing; None takes it out."""
        return Spec(_replaced(self.document, path, value))


def _replaced(document: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    changed = dict(document)
    first, rest = path[0], path[1:]
    if rest:
        inner = changed.get(first)
        changed[first] = _replaced({} if inner is None else inner, rest, value)
    elif value is None:
        changed.pop(first, None)
    else:
        changed[first] = value
    return changed


def load(bundle_fd: int) -> Spec:
    """Return the spec in the bundle open at `bundle_fd`; SpecError where it cannot be worked on."""
    try:
        fd = os.open(
            CONFIG, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=bundle_fd
        )
    except OSError as error:
        raise SpecError(f"cannot be opened ({error.strerror})") from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise SpecError("not a regular file")
        data = read_at_most(fd, MAX_BYTES + 1)
    finally:
        os.close(fd)
    return parse(data)


def parse(data: bytes) -> Spec:
    """Return the spec that `data` is; SpecError where it is none."""
    if len(data) > MAX_BYTES:
        raise SpecError(f"over {MAX_BYTES >> 20} MiB", "reduce the annotations and the environment")
    try:
        return Spec(parse_object(data))
    except ValueError as error:
        raise SpecError(str(error)) from error


def dump(spec: Spec) -> bytes:
    """Return the bytes of `spec`: ASCII, so that any reader of JSON reads the same."""
    return json.dumps(spec.document, separators=(",", ":"), allow_nan=False).encode()


def store(bundle_fd: int, spec: Spec, loaded: Spec) -> bool:
    """Put `spec` in place of `loaded` in the bundle; False, and no write, where they are equal.

    The new file has the old one's owner and mode and appears by one rename: a reader sees the one
    or the other, whole. Nothing is synced to disk: a bundle does not outlive a crash of the machine
    (engines write it anew for each start, mostly on a tmpfs), and an fsync costs milliseconds that
    a container's start would wait for. SpecError where it would be over 4 MiB; OSError as write(2).
    """
    if spec.document == loaded.document:
        return False
    data = dump(spec)
    if len(data) > MAX_BYTES:
        raise SpecError(f"would be over {MAX_BYTES >> 20} MiB with what a GPU needs")
    before = os.stat(CONFIG, dir_fd=bundle_fd, follow_symlinks=False)
    owner = (before.st_uid, before.st_gid)
    replace_file(CONFIG, data, stat.S_IMODE(before.st_mode), owner=owner, dir_fd=bundle_fd)
    return True
