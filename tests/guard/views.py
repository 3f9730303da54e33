# SPDX-License-Identifier: Apache-2.0
"""What is seen of a daemon beside its replies: the ledger's files, metrics, tables of commands."""

from __future__ import annotations

import http.client
import json
import re
import socket
import sys
from pathlib import Path
from typing import Any, Final

from tests.guard import commands, masks
from tests.stack import Stack

_FORMATS: Final = {"plain": "text/plain", "open": "application/openmetrics-text; version=1.0.0"}
_COMPAT: Final = ("hami", "hami-legacy", "dcgm", "gpu-manager")
#: Families of which the values are measured.
_MEASURED: Final = re.compile(
    r"_seconds|_util|_ratio|_cores|_percent|_active|created|temp|power|last_kernel"
)
_MEASURED_COLUMN: Final = "THROTTLED"
#: In tables: ages, times of the day, processes in the first column, and what was measured.
_OF_MOMENT: Final = (
    (re.compile(r"\b\d+(?:\.\d+)? ?(?:s|ms|min|seconds?|minutes?)\b"), "<age>"),
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), "<time>"),
    (re.compile(r"^( *)\d+(  \d+  \S)"), r"\1<pid>\2"),
    (re.compile(r"^( *throttled ).*"), r"\1<measured>"),
    (re.compile(r"\b\d+ (windows|overruns|forced launches)\b"), r"<measured> \1"),
)


def ledger(run: Path) -> dict[str, Any]:
    """Return each file of the ledger and of its copies, as it is on the disk."""
    files = sorted(file for name in ("ledger", "copies") for file in (run / name).glob("*"))
    return {str(file.relative_to(run)): _content(file) for file in files if file.is_file()}


def _content(file: Path) -> Any:
    """Return the head without its checksum, and the object; of what is no record, the text."""
    try:
        head, body = file.read_text(errors="replace").split("\n", 1)
    except ValueError:
        return "one line"
    except FileNotFoundError:
        return "gone meanwhile"
    try:
        return [head.rsplit(" ", 1)[0], json.loads(body)]
    except ValueError:
        return [head, body]


def metrics(stack: Stack) -> dict[str, dict[str, list[str]]]:
    """Return what gpushare-exporter serves, by format and family, with the names of all others."""
    place = stack.root / "exporter.sock"
    words = ["--socket", str(stack.socket), "--listen", f"unix:{place}", "--node", "guard"]
    words += ["--compat", ",".join(_COMPAT)]
    program = Path(sys.executable).parent / "gpushare-exporter"
    exporter = stack.start("exporter", [str(program), *words])
    try:
        exporter.wait_until(place.exists)
        return {name: _served(place, accept) for name, accept in _FORMATS.items()}
    finally:
        exporter.stop()


def _served(place: Path, accept: str) -> dict[str, list[str]]:
    link = http.client.HTTPConnection("localhost")
    link.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.sock.connect(str(place))
    link.request("GET", "/metrics", headers={"Accept": accept})
    answer = link.getresponse()
    lines = answer.read().decode().splitlines()
    link.close()
    found: dict[str, list[str]] = {"content type": [str(answer.headers["Content-Type"])]}
    family = ""
    for line in lines:
        family = line.split()[2] if line.startswith("# HELP") else family
        found.setdefault(family, []).append(_without_measured(line))
    return {**found, "last": lines[-1:]}


def _without_measured(line: str) -> str:
    name = re.split(r"[{ ]", line, maxsplit=1)[0]
    if line.startswith("#") or not (_MEASURED.search(name) or masks.RACED in line):
        return line
    return f"{line.rsplit(' ', 1)[0]} <measured>"


def shown(stack: Stack, *names: str) -> dict[str, Any]:
    """Return what the commands that inspect print, as tables and as JSON."""
    words = [["ls"], ["ps"], ["ps", "-a"], ["queue"], ["history"]]
    words += [[command, name] for command in ("why", "history", "inspect") for name in names]
    return {
        " ".join((*some, *how)): _printed(stack, [*some, *how])
        for some in words
        for how in ([], ["--json"])
    }


def _printed(stack: Stack, words: list[str]) -> dict[str, Any]:
    said = commands.call(*words, socket=str(stack.socket))
    if isinstance(said["json"], str):
        said["json"] = table(said["json"].splitlines())
    return said


def table(lines: list[str]) -> list[str]:
    """Return what a command prints without what is of the moment, in columns of any width."""
    if lines and _MEASURED_COLUMN in lines[0]:
        begin, after = lines[0].index(_MEASURED_COLUMN), lines.index("") if "" in lines else None
        rest = lines[0][begin + len(_MEASURED_COLUMN) :]
        end = len(lines[0]) - len(rest.lstrip())
        lines = [line[:begin] + line[end:] for line in lines[:after]] + lines[len(lines[:after]) :]
    lines = [re.sub(r" {2,}", "  ", line).rstrip() for line in lines]
    for pattern, stands_for in _OF_MOMENT:
        lines = [pattern.sub(stands_for, line) for line in lines]
    return lines


def texts(folder: Path) -> dict[str, Any]:
    """Return the objects in the JSON files of a folder."""
    return {file.name: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


def _is_raced(event: Any) -> bool:
    return masks.RACED in json.dumps(event) or "the scheduler was started" in json.dumps(event)


def in_order(step: dict[str, Any]) -> dict[str, Any]:
    """Return a step with the rows sorted that are in the order of keys, or of threads."""
    step["tenants"].sort(key=json.dumps)
    step["metrics"]["rows"].sort(key=json.dumps)
    for families in step.get("served", {}).values():
        for lines in families.values():
            lines.sort()
    for words, said in step.get("shown", {}).items():
        if isinstance(said["json"], list) and words.split()[0] in {"ps", "history"}:
            said["json"] = [one for one in said["json"] if not _is_raced(one)]
            for event in said["json"]:
                if isinstance(event, dict):
                    event.pop("number", None)
            said["json"].sort(key=json.dumps)
    return step
