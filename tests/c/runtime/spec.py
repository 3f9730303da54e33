# SPDX-License-Identifier: Apache-2.0
"""Bundles for the tests, and a second opinion on what markers.inc says."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

Spec = dict[str, Any]


def filled(name: str) -> str:
    """Return a vendor's key with what it is for: a container `a`, the first card, and so on."""
    return name.format(container="a", card="0", model="a10", any="X")


def plain() -> Spec:
    """Return a spec as engines write it, with nothing of a GPU in it."""
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": ["sh", "-c", "echo GPUSHARE_MEMORY=4GiB /dev/nvidia0 && true"],
            "env": ["PATH=/bin", "TERM=xterm", "GPUSHARE_LOG=debug"],
            "cwd": "/",
        },
        "root": {"path": "rootfs", "readonly": True},
        "hostname": "gpushare.io/memory",
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
        "hooks": {"prestart": [{"path": "/proc/1/exe", "args": ["libnetwork-setkey"]}]},
        "annotations": {"io.example/asks": "gpushare.io/memory"},
        "linux": {
            "devices": [{"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229}],
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
        },
    }


def with_annotation(key: str, value: str = "1") -> Spec:
    spec = plain()
    spec["annotations"][key] = value
    return spec


def with_env(variable: str) -> Spec:
    spec = plain()
    spec["process"]["env"].append(variable)
    return spec


def with_device(path: str, major: int = 195) -> Spec:
    spec = plain()
    spec["linux"]["devices"].append({"type": "c", "path": path, "major": major, "minor": 0})
    return spec


def with_mount(source: str, destination: str = "/dev/card") -> Spec:
    spec = plain()
    mount = {"destination": destination, "type": "bind", "source": source, "options": ["bind"]}
    spec["mounts"].append(mount)
    return spec


def with_rule(major: int, *, allow: bool = True) -> Spec:
    """Return a spec as `docker run --device-cgroup-rule` has it."""
    spec = plain()
    rule = {"allow": allow, "type": "c", "major": major, "access": "rwm"}
    spec["linux"]["resources"]["devices"].append(rule)
    return spec


def privileged(spec: Spec) -> Spec:
    """Return `spec` as `docker run --privileged` has it: a later rule lets it at every device."""
    spec["linux"]["resources"]["devices"].append({"allow": True, "access": "rwm"})
    return spec


def with_hook(path: str, stage: str = "prestart", *args: str) -> Spec:
    spec = plain()
    spec["hooks"].setdefault(stage, []).append({"args": ["x", *args], "path": path})
    return spec


def go(spec: Spec) -> bytes:
    """Return `spec` as Go's encoder writes it: `&`, `<` and `>` are escaped."""
    text = json.dumps(spec, separators=(",", ":"), ensure_ascii=False)
    for character in "&<>":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode()


def escaped(spec: Spec) -> bytes:
    """Return `spec` with every character of its strings as an escape."""
    text = json.dumps(spec)
    return re.sub(
        r'"((?:[^"\\]|\\.)*)"',
        lambda found: '"' + "".join(f"\\u{ord(c):04x}" for c in json.loads(found[0])) + '"',
        text,
    ).encode()


def bundle(folder: Path, spec: Spec) -> Path:
    """Write `spec` and an empty root file system for it."""
    (folder / "rootfs").mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_bytes(go(copy.deepcopy(spec)))
    return folder
