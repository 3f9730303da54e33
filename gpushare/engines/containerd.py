# SPDX-License-Identifier: Apache-2.0
"""The runtime in containerd's config.toml, for CRI (Kubernetes, crictl).

The text is understood with tomlkit and edited as text, so that comments and layout stay; what comes
out is parsed again and must say exactly what was meant. Source: containerd docs/cri/config.md; the
CRI plugin has another name in each version of the file.
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tomlkit
from tomlkit.exceptions import ParseError, TOMLKitError

from gpushare.engines.errors import BadConfiguration

NAME: Final = "gpushare"
ANNOTATIONS: Final = "gpushare.io/*"
_PLUGINS: Final = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
_RUNC: Final = "io.containerd.runc.v2"
_MARK: Final = "# gpushare: `gpushare runtime unconfigure --runtime containerd` takes this away"
_HEADER: Final = re.compile(r"\s*\[(?!\[)(?P<name>.+)\]\s*(#.*)?")
_DEFAULT: Final = re.compile(r"(\s*default_runtime_name\s*=\s*)(\"[^\"]*\"|'[^']*')(.*)")

Tree = dict[str, Any]


@dataclass(frozen=True)
class Section:
    """A table of the file: its name in parts, its header's line and the line after its last."""

    name: tuple[str, ...]
    start: int
    end: int


def register(text: str, launcher: Path, *, default: bool) -> str:
    """Return `text` with the handler in it, as CRI's default where that is asked.

    The handler is a copy of the present default with our BinaryName and annotations: what the
    administrator chose there (SystemdCgroup) holds for ours too.
    """
    wanted = _parse(text) or {"version": 2}
    edited = text if _parse(text) else _append(text, "version = 2")
    base = _plugin(wanted)
    section = _at(wanted, base)
    runtimes = section.setdefault("runtimes", {})
    handler = _handler(section, launcher)
    if runtimes.get(NAME) != handler:
        runtimes[NAME] = handler
        edited = _without_handler(edited, base)
        edited = _append(edited, "\n" + _MARK + "\n" + _table((*base, "runtimes", NAME), handler))
    if default and section.get("default_runtime_name") != NAME:
        section["default_runtime_name"] = NAME
        edited = _with_default(edited, base, NAME)
    return _proven(edited, wanted)


def unregister(text: str, original: str) -> str:
    """Return `text` without the handler; the default becomes what it is in `original`."""
    wanted = _parse(text)
    base = _plugin(wanted)
    section = _at(wanted, base)
    edited = _without_handler(text, base)
    section.get("runtimes", {}).pop(NAME, None)
    if section.get("default_runtime_name") == NAME:
        found = _parse(original)
        before = _at(found, _plugin(found)).get("default_runtime_name")
        if before in {None, NAME}:
            del section["default_runtime_name"]
            edited = _with_default(edited, base, None)
        else:
            section["default_runtime_name"] = before
            edited = _with_default(edited, base, before)
    return _proven(edited, wanted)


def registered(text: str) -> Path | None:
    """Return the launcher that `text` names, None when the handler is not in it."""
    found = _parse(text)
    handler = _at(found, _plugin(found)).get("runtimes", {}).get(NAME)
    return Path(handler.get("options", {}).get("BinaryName", "")) if handler else None


def is_default(text: str) -> bool:
    """Return whether pods get the handler without a RuntimeClass."""
    found = _parse(text)
    return bool(_at(found, _plugin(found)).get("default_runtime_name") == NAME)


def remarks(text: str) -> list[str]:
    """Return what the user should know of this configuration."""
    found = _parse(text)
    told: list[str] = []
    if {"cri", _PLUGINS[2]} & set(found.get("disabled_plugins", [])):
        told.append("the CRI plugin is disabled here (disabled_plugins): Kubernetes cannot use it")
    if found.get("imports"):
        told.append(f"imported files may say otherwise: {', '.join(found['imports'])}")
    return told


def _parse(text: str) -> Tree:
    try:
        return tomlkit.parse(text).unwrap()
    except ParseError as error:
        raise BadConfiguration(str(error), error.line) from error
    except TOMLKitError as error:
        raise BadConfiguration(str(error)) from error


def _plugin(found: Tree) -> tuple[str, str, str]:
    version = found.get("version", 1 if found else 2)
    if version not in _PLUGINS:
        raise BadConfiguration(f"version = {version} is not known here (1, 2 and 3 are)")
    return ("plugins", _PLUGINS[version], "containerd")


def _at(found: Tree, path: tuple[str, ...]) -> Tree:
    """Return the table at `path`, made where it is not there."""
    for name in path:
        found = found.setdefault(name, {})
        if not isinstance(found, dict):
            raise BadConfiguration(f"{name} is not a table")
    return found


def _handler(section: Tree, launcher: Path) -> Tree:
    runtimes = section["runtimes"]
    chosen = section.get("default_runtime_name", "runc")
    handler: Tree = copy.deepcopy(runtimes.get(NAME) or runtimes.get(chosen) or {})
    if handler.get("runtime_type", _RUNC) != _RUNC:
        # Kata and gVisor have no BinaryName: our launcher is of the runc kind.
        handler = copy.deepcopy(runtimes.get("runc") or {})
    handler["runtime_type"] = _RUNC
    for key in ("pod_annotations", "container_annotations"):
        passed = handler.get(key) or []
        handler[key] = passed if ANNOTATIONS in passed else [*passed, ANNOTATIONS]
    handler["options"] = {**handler.get("options", {}), "BinaryName": str(launcher)}
    return handler


def _table(name: tuple[str, ...], table: Tree) -> str:
    """Return `table` as text, the tables in it after it."""
    lines = [f"[{'.'.join(_key(part) for part in name)}]"]
    lines += [
        f"  {_key(key)} = {tomlkit.item(value).as_string()}"
        for key, value in table.items()
        if not isinstance(value, dict)
    ]
    inner = [_table((*name, key), value) for key, value in table.items() if isinstance(value, dict)]
    return "\n".join([*lines, *inner])


def _key(part: str) -> str:
    return part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else json.dumps(part)


def _append(text: str, block: str) -> str:
    if not text:
        return block.lstrip("\n") + "\n"
    return text + ("" if text.endswith("\n") else "\n") + block + "\n"


def _sections(lines: list[str]) -> list[Section]:
    starts: list[tuple[int, tuple[str, ...]]] = []
    for number, line in enumerate(lines):
        if _HEADER.fullmatch(line):
            starts.append((number, _parts(line)))
        elif line.lstrip().startswith("[["):
            starts.append((number, ()))
    ends = [*(start for start, _ in starts[1:]), len(lines)]
    return [Section(name, start, end) for (start, name), end in zip(starts, ends, strict=False)]


def _parts(header: str) -> tuple[str, ...]:
    try:
        found = tomlkit.parse(header.strip() + "\n").unwrap()
    except TOMLKitError:
        return ()  # a line of an array or a string that looks like one
    parts: list[str] = []
    while found:
        ((name, found),) = found.items()
        parts.append(name)
    return tuple(parts)


def _without_handler(text: str, base: tuple[str, ...]) -> str:
    lines = text.splitlines(keepends=True)
    ours = (*base, "runtimes", NAME)
    for section in reversed(_sections([line.rstrip("\r\n") for line in lines])):
        if section.name[: len(ours)] != ours:
            continue
        start, end = section.start, section.end
        if start and lines[start - 1].strip() == _MARK:
            start -= 2 if start > 1 and not lines[start - 2].strip() else 1
        # Comments and blank lines before the next header belong to that.
        while end > section.start + 1 and _is_aside(lines[end - 1]):
            end -= 1
        del lines[start:end]
    return "".join(lines)


def _is_aside(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _is_only(lines: list[str], section: Section, number: int) -> bool:
    """Return whether line `number` is all that `section` says."""
    others = [*lines[section.start + 1 : number], *lines[number + 1 : section.end]]
    return all(not line.strip() for line in others)


def _with_default(text: str, base: tuple[str, ...], name: str | None) -> str:
    """Return `text` with default_runtime_name set, or without it for None."""
    lines = text.splitlines(keepends=True)
    plain = [line.rstrip("\r\n") for line in lines]
    section = next((found for found in _sections(plain) if found.name == base), None)
    if section is None:
        return text if name is None else _append(text, _table(base, {"default_runtime_name": name}))
    for number in range(section.start + 1, section.end):
        if match := _DEFAULT.fullmatch(plain[number]):
            ending = lines[number][len(plain[number]) :]
            before, _, after = match.groups()
            if name is not None:
                lines[number] = f"{before}{json.dumps(name)}{after}{ending}"
            elif _is_only(plain, section, number):
                del lines[section.start : number + 1]
            else:
                del lines[number]
            return "".join(lines)
    if name is not None:
        indent = re.match(r"\s*", plain[section.start])
        assert indent is not None
        lines[section.start] = lines[section.start].rstrip("\r\n") + "\n"
        lines.insert(
            section.start + 1, f"{indent.group()}  default_runtime_name = {json.dumps(name)}\n"
        )
    return "".join(lines)


def _proven(edited: str, wanted: Tree) -> str:
    """Return `edited` when it says what is `wanted`, whatever the shape of the file was."""
    try:
        said = tomlkit.parse(edited).unwrap()
    except TOMLKitError:
        said = {}
    if _filled(said) != _filled(wanted):
        raise BadConfiguration(
            "is written in a way that cannot be edited safely; use --config with "
            "a file of plain [tables], or import one"
        )
    return edited


def _filled(found: Any) -> Any:
    """Return `found` without empty tables: whether one is written makes no difference."""
    if not isinstance(found, dict):
        return found
    kept = {name: _filled(value) for name, value in found.items()}
    return {name: value for name, value in kept.items() if value != {}}
