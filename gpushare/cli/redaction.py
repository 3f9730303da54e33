# SPDX-License-Identifier: Apache-2.0
"""Pseudonyms for the names in a bug report: of containers, pods, images, users and the host.

A name has the same pseudonym everywhere, and in each report of one machine: it is made from the
name and the machine's ID, without which nobody can test a guess. Names are replaced wherever they
stand alone, also where they mean something else: a container may be called `card`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import pwd
import re
import secrets
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

MACHINE_ID: Final = Path("/etc/machine-id")
_FIRST_USER: Final = 1000  # smaller UIDs belong to the system (login.defs(5))
_NOBODY: Final = 65534
_ENGINE_SECONDS: Final = 20
_HEX: Final = re.compile(r"[0-9a-f]{12,64}", re.ASCII)
#: Names that say nothing of anybody, and without which a report cannot be read.
_PUBLIC: Final = frozenset(
    {
        *("gpushare", "gpushared", "docker", "containerd", "podman", "crio", "runc", "crun"),
        *("kubelet", "localhost", "default", "host", "operator", "audit", "root"),
    }
)
#: The fields of a log line or an event that are a name, and of what.
_FIELDS: Final[Mapping[str, str]] = {
    "name": "container",
    "container": "container",
    "pod": "pod",
    "namespace": "namespace",
    "image": "image",
    "user": "user",
    "node": "host",
    "node_name": "host",
}
#: Parts of the report in which these fields are names; in others, a name may be of a process.
_NAMING: Final = ("ps.json", "history.json", "status.json", "gpushared.log")


class Pseudonyms:
    """The names that are known, each with its pseudonym: `container-1f2e3d4c`."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = machine_key() if key is None else key
        self._known: dict[str, str] = {}

    def add(self, names: Iterable[tuple[str, str]]) -> None:
        """Add names, each with its kind; the first kind of a name counts."""
        for kind, name in names:
            if name and name not in _PUBLIC and not _HEX.fullmatch(name):
                digest = hmac.new(self._key, name.encode("utf-8", "replace"), hashlib.sha256)
                self._known.setdefault(name, f"{kind}-{digest.hexdigest()[:8]}")

    def replaced(self, part: Any) -> Any:
        """Return `part`, a text or the value of a JSON document, with the pseudonyms."""
        if isinstance(part, Mapping):
            return {key: self.replaced(value) for key, value in part.items()}
        if isinstance(part, list | tuple):
            return [self.replaced(value) for value in part]
        if not isinstance(part, str) or not self._known:
            return part
        longest = sorted(self._known, key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest))
        return re.sub(rf"(?<![\w-])(?:{pattern})(?![\w-])", lambda at: self._known[at[0]], part)

    def replaced_log(self, text: str) -> str:
        """Return the lines of a log; of one that is a JSON object, only values are replaced."""
        return "\n".join(self._replaced_line(line) for line in text.splitlines())

    def _replaced_line(self, line: str) -> str:
        found = _object(line)
        return str(self.replaced(line)) if found is None else json.dumps(self.replaced(found))


def machine_key() -> bytes:
    """Return a secret of this machine; without one, a new secret each time."""
    try:
        identity = MACHINE_ID.read_bytes().strip()
    except OSError:
        identity = b""
    return hashlib.sha256(b"gpushare report " + (identity or secrets.token_bytes(32))).digest()


def names_on_machine() -> Iterator[tuple[str, str]]:
    """Yield the names that this machine has, whether or not gpushare knows them."""
    host = socket.gethostname()
    yield from (("host", name) for name in (host, host.lower(), host.partition(".")[0]))
    yield "host", os.environ.get("NODE_NAME", "")
    yield "user", os.environ.get("SUDO_USER", "")
    for user in pwd.getpwall():
        if _FIRST_USER <= user.pw_uid != _NOBODY:
            yield "user", user.pw_name
    for engine in ("docker", "podman"):
        for line in _engine_rows(engine):
            name, _, image = line.partition("\t")
            yield "container", name
            yield from _of_image(image)


def _engine_rows(engine: str) -> list[str]:
    try:
        done = subprocess.run(
            [engine, "ps", "--all", "--format", "{{.Names}}\t{{.Image}}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ENGINE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()


def _of_image(image: str) -> Iterator[tuple[str, str]]:
    """Yield an image's reference, and the same without its tag and digest."""
    yield "image", image
    yield "image", re.sub(r"(?::[\w.-]+)?(?:@sha256:[0-9a-f]+)?$", "", image)


def names_in(parts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names in the parts of a report, by the names of their files."""
    for name in _NAMING:
        part = parts.get(name)
        if isinstance(part, str):
            part = [_object(line) for line in part.splitlines()]
        yield from _in_fields(part)
    yield from _in_configuration(parts.get("gpushare.yaml", ""))


def _object(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _in_fields(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, list):
        for one in value:
            yield from _in_fields(one)
    elif isinstance(value, Mapping):
        kinds = {**_FIELDS, "name": "pod"} if "namespace" in value else _FIELDS
        for key, one in value.items():
            if key in kinds and isinstance(one, str):
                yield kinds[key], one
                if one.count("/") == 2:  # namespace/pod/container: a container of Kubernetes
                    yield from zip(("namespace", "pod", "container"), one.split("/"), strict=True)
            elif key != "processes":
                yield from _in_fields(one)


def _in_configuration(text: str) -> Iterator[tuple[str, str]]:
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        return
    found = found if isinstance(found, dict) else {}
    yield from (("namespace", str(name)) for name in found.get("namespaces") or ())
    kubernetes = found.get("kubernetes")
    if isinstance(kubernetes, dict):
        yield "host", str(kubernetes.get("node", ""))
