# SPDX-License-Identifier: Apache-2.0
"""Bundles for the tests, and a second opinion on what markers.inc says."""

from __future__ import annotations

import copy
import fnmatch
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

Spec = dict[str, Any]

STRENGTHS = ("none", "weak", "strong")


class MarkerRow(NamedTuple):
    source: str
    shape: str
    text: str
    strength: str


def table(path: Path) -> list[MarkerRow]:
    """Return the rows of markers.inc."""
    pattern = re.compile(r'^MARKER\((\w+), (\w+), "([^"]+)", (\w+)\)$', re.MULTILINE)
    return [
        MarkerRow(source, shape, text, strength.lower())
        for source, shape, text, strength in pattern.findall(path.read_text())
    ]


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


def marker(rows: list[MarkerRow], spec: Any) -> str:
    """Return how strongly `spec` is marked, read with Python's parser."""
    marked = [(source, _strength(rows, source, text)) for source, text in _texts(spec)]
    found = [(source, strength) for source, strength in marked if strength != "none"]
    nodes = _numbered(spec) or any(source in {"DEVICE", "MOUNT"} for source, _ in found)
    given = nodes and not _every_device(spec)
    placed = given or any(source.startswith("HOOK") for source, _ in found)
    if _sandbox(spec) and not placed:
        return "none"
    strengths = [strength for source, strength in found if source not in {"DEVICE", "MOUNT"}]
    if nodes:
        strengths.append("strong" if given else "weak")
    return max(strengths, key=STRENGTHS.index, default="none")


def _strength(rows: list[MarkerRow], source: str, text: str) -> str:
    for row in rows:
        if row.source == source and _fits(row, text):
            return row.strength
    return "none"


def _fits(row: MarkerRow, text: str) -> bool:
    if row.shape == "NAME":
        return text == row.text
    if row.shape == "PREFIX":
        return text.startswith(row.text)
    if row.shape == "BASENAME":
        return text.rpartition("/")[2].startswith(row.text)
    return len(text) < 256 and "\0" not in text and fnmatch.fnmatchcase(text, row.text)


def _member(value: Any, name: str, kind: type) -> Any:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, kind) else kind()


def _texts(spec: Any) -> list[tuple[str, str]]:
    linux = _member(_member(spec, "linux", dict), "devices", list)
    stages = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart")
    hooks = _member(spec, "hooks", dict)
    listed = [h for stage in (*stages, "poststop") for h in _member(hooks, stage, list)]
    variables = _member(_member(spec, "process", dict), "env", list)
    mounts = _member(spec, "mounts", list)
    return [
        *(("ANNOTATION", key) for key in _member(spec, "annotations", dict)),
        *(("ENV", v.partition("=")[0]) for v in variables if isinstance(v, str)),
        *(("DEVICE", _member(device, "path", str)) for device in linux),
        *(("MOUNT", _member(mount, "source", str)) for mount in mounts),
        *(("MOUNTED", _member(mount, "destination", str)) for mount in mounts),
        *(("HOOK", _member(hook, "path", str)) for hook in listed),
        *(
            ("HOOK_ARGUMENT", word)
            for hook in listed
            for word in _member(hook, "args", list)
            if isinstance(word, str)
        ),
    ]


def _numbered(spec: Any) -> bool:
    linux = _member(spec, "linux", dict)
    rules = _member(_member(linux, "resources", dict), "devices", list)
    allowed = [rule for rule in rules if isinstance(rule, dict) and rule.get("allow") is True]
    devices = [*_member(linux, "devices", list), *allowed]
    return any(_member(device, "major", int) == 195 for device in devices)


def _every_device(spec: Any) -> bool:
    resources = _member(_member(spec, "linux", dict), "resources", dict)
    for rule in reversed(_member(resources, "devices", list)):
        every_type = isinstance(rule, dict) and rule.get("type", "a") in ("a", "")
        if every_type and rule.get("major") in (None, -1):
            return rule.get("allow") is True
    return False


def _sandbox(spec: Any) -> bool:
    annotations = _member(spec, "annotations", dict)
    keys = ("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType")
    return any(annotations.get(key) == "sandbox" for key in keys)


def bundle(folder: Path, spec: Spec) -> Path:
    """Write `spec` and an empty root file system for it."""
    (folder / "rootfs").mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_bytes(go(copy.deepcopy(spec)))
    return folder
