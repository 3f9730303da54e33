# SPDX-License-Identifier: Apache-2.0
"""The step of setup that writes /etc/gpushare/gpushare.yaml, or completes the user's own.

A key that the user's file does not have is added, on a line with a mark that gpushare-undo
(`script/undo.sh`) removes again. Nothing else of the file changes. A key with another value is the
user's decision: setup stops with what to change.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any, Final

import yaml

from gpushare import config
from gpushare.engines.config_files import FileChange, read_text, under_root
from gpushare.setup.step import SetupError, SetupStep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpushare.protocol.kubernetes import NodeMode
    from gpushare.setup import InstallRecord

MARK: Final = "  # added by gpushare setup"
_NOTE: Final = "# Written by `gpushare setup`. You can edit it. All keys: gpushare config show."
# A line that setup added; script/undo.sh has the same pattern.
_ADDED: Final = re.compile(rf"(?m)^ *(\w+: \{{)?(cdi_spec|mode): \S+?\}}?{re.escape(MARK)}\n")


def plan_configuration(
    made: InstallRecord, cdi: Path, wanted: NodeMode | None
) -> Iterator[SetupStep]:
    """Yield the step that sets driver.cdi_spec, and kubernetes.mode if it is `wanted`."""
    path = config.DEFAULT_FILE
    place = under_root(made.root, path)
    text = read_text(place)
    keys = {("driver", "cdi_spec"): str(cdi)}
    if mode := wanted or (_loaded(text, path).get("kubernetes") or {}).get("mode"):
        keys["kubernetes", "mode"] = mode
    if not place.exists() or made.owns(path):
        after = f"{_NOTE}\n" + "".join(
            f"{section}:\n  {key}: {value}\n" for (section, key), value in keys.items()
        )
        what = f"write {path} (driver.cdi_spec: {cdi})"
        done = None if text == after else lambda: made.write(path, after)
        yield SetupStep(what if done else f"configuration {path}", done)
        return
    loaded = _loaded(text, path)
    if all((loaded.get(section) or {}).get(key) == value for (section, key), value in keys.items()):
        yield SetupStep(f"configuration {path} (edited by you)")
        return
    original = _ADDED.sub("", text)
    after = original
    for (section, key), value in keys.items():
        after = _completed(after, section, key, value, path)
    change = FileChange(place, text, after, original)

    def complete() -> None:
        made.edit("gpushare", [("yaml", change)])
        change.apply()

    added = ", ".join(f"{section}.{key}" for section, key in keys)
    yield SetupStep(f"complete {path} with {added}", complete, change.diff())


def _completed(text: str, section: str, key: str, value: str, path: Path) -> str:
    """Return `text` with the key; SetupError if it has another value, or no place for it."""
    loaded = _loaded(text, path)
    present = (loaded.get(section) or {}).get(key)
    if present == value:
        return text
    if present is not None:
        raise SetupError(
            f"{path} was edited and has another {section}.{key}. Set it to {value}, or remove it"
        )
    wanted: dict[str, Any] = copy.deepcopy(loaded)
    wanted[section] = {**(wanted.get(section) or {}), key: value}
    edited = _with_key(text, section, key, value)
    try:
        is_right = yaml.safe_load(edited) == wanted
    except yaml.YAMLError:
        is_right = False
    if not is_right:
        raise SetupError(f"{path} cannot be completed safely. Set {section}.{key} in it to {value}")
    return edited


def _loaded(text: str, path: Path) -> dict[str, Any]:
    try:
        loaded = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise SetupError(f"{path}: {error}. Nothing was changed") from error
    if not isinstance(loaded, dict):
        raise SetupError(f"{path} is not a mapping of keys. Nothing was changed")
    return loaded


def _with_key(text: str, section: str, key: str, value: str) -> str:
    """Return `text` with a new line for the key, in the section's layout if there is one."""
    root = yaml.compose(text)
    entries = root.value if isinstance(root, yaml.MappingNode) else []
    nodes = {name.value: (name, node) for name, node in entries}
    lines = text.splitlines(keepends=True)
    if section not in nodes:
        end = "" if text.endswith("\n") or not text else "\n"
        return f"{text}{end}{section}: {{{key}: {value}}}{MARK}\n"
    name, node = nodes[section]
    if isinstance(node, yaml.MappingNode) and node.flow_style:
        at, more = node.start_mark.index + 1, ", " if node.value else ""
        return f"{text[:at]}{key}: {value}{more}{text[at:]}"
    if isinstance(node, yaml.MappingNode):
        first = node.value[0][0].start_mark
        lines.insert(first.line, f"{' ' * first.column}{key}: {value}{MARK}\n")
    else:  # an empty section
        lines.insert(name.start_mark.line + 1, f"  {key}: {value}{MARK}\n")
    return "".join(lines)
