# SPDX-License-Identifier: Apache-2.0
"""The runtime in a CRI-O drop-in.

CRI-O merges the tables of drop-ins with those of earlier files, key by key. `allowed_annotations`
is copied without additions: it lists CRI-O's own annotations only, CRI-O does not start with an
unknown one, and all other annotations reach the spec anyway.
Source: crio.conf(5), crio.conf.d(5); cri-o pkg/config/config.go, RuntimeHandler.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

from gpushare.engines import toml_text
from gpushare.engines.config_files import (
    NAME,
    ConfigFile,
    ConfigLocation,
    Syntax,
    UndoneBy,
    under_root,
)
from gpushare.engines.toml_text import TomlKey, TomlTable

MAIN: Final = Path("/etc/crio/crio.conf")
FOLDERS: Final = (Path("/usr/share/crio/crio.conf.d"), Path("/etc/crio/crio.conf.d"))
DROP_IN: Final = FOLDERS[-1] / f"99-{NAME}.conf"
RESTART: Final = "systemctl restart crio"
MARK: Final = "# gpushare: `gpushare runtime unconfigure --runtime crio` removes this"
_RUNTIME: Final[TomlKey] = ("crio", "runtime")
_DEFAULT: Final = "default_runtime"
_TYPE: Final = "oci"
# Keys that gpushare's handler sets itself, and keys of conmon-rs or a virtual machine.
_OWN: Final = frozenset({"runtime_path", "runtime_config_path", "inherit_default_runtime"})


@dataclass(frozen=True)
class CrioDropIn(Syntax):
    """A file in `crio.conf.d`; `around` is the merged content of the other files.

    `later` is the default set by a file that is read after this one, empty if there is none.
    """

    around: TomlTable = field(default_factory=dict, repr=False)
    later: str = ""

    undone_by: ClassVar[UndoneBy] = "toml"

    def register(self, text: str, launcher: Path, *, default: bool) -> str:
        """Return `text` with the handler, a copy of the default one, around `launcher`."""
        wanted = toml_text.parse(text)
        runtime = toml_text.table_at(wanted, _RUNTIME)
        runtimes = runtime.setdefault("runtimes", {})
        handler = self._handler(runtimes.get(NAME), launcher)
        edited = text
        if default and runtime.get(_DEFAULT) != NAME:
            runtime[_DEFAULT] = NAME
            edited = toml_text.set_string(edited, _RUNTIME, _DEFAULT, NAME)
        if runtimes.get(NAME) != handler:
            runtimes[NAME] = handler
            name = (*_RUNTIME, "runtimes", NAME)
            edited = toml_text.remove_table(edited, name, MARK)
            edited = toml_text.append(edited, f"\n{MARK}\n{toml_text.format_table(name, handler)}")
        return toml_text.verified(edited, wanted)

    def unregister(self, text: str, original: str) -> str:
        """Return `text` without the handler; the default as in `original`."""
        wanted = toml_text.parse(text)
        runtime = toml_text.table_at(wanted, _RUNTIME)
        edited = toml_text.remove_table(text, (*_RUNTIME, "runtimes", NAME), MARK)
        runtime.get("runtimes", {}).pop(NAME, None)
        if runtime.get(_DEFAULT) == NAME:
            before = toml_text.table_at(toml_text.parse(original), _RUNTIME).get(_DEFAULT)
            edited = toml_text.set_string(edited, _RUNTIME, _DEFAULT, before)
            del runtime[_DEFAULT]
            runtime |= {_DEFAULT: before} if before else {}
        return toml_text.verified(edited, wanted)

    def registered(self, text: str) -> Path | None:
        """Return the launcher in `text`, None if it has no handler for gpushare."""
        return registered_launcher(toml_text.parse(text))

    def is_default(self, text: str) -> bool:
        """Return whether pods get the handler without a RuntimeClass."""
        return bool(toml_text.table_at(toml_text.parse(text), _RUNTIME).get(_DEFAULT) == NAME)

    def remarks(self, text: str) -> list[str]:
        """Return warnings about this configuration."""
        if self.is_default(text) and self.later not in {"", NAME}:
            return [f"a drop-in that is read later sets {_DEFAULT} = {self.later}"]
        return []

    def _handler(self, ours: TomlTable | None, launcher: Path) -> TomlTable:
        handler = {
            key: value
            for key, value in copy.deepcopy(ours or default_handler(self.around)).items()
            if key not in _OWN
        }
        if handler.get("runtime_type", _TYPE) not in {"", _TYPE}:
            handler = {}  # of a virtual machine or conmon-rs: gpushare's is a runc-type runtime
        return {"runtime_path": str(launcher), **handler, "runtime_type": _TYPE}


def locate(root: Path = Path("/"), file: Path | None = None) -> ConfigLocation:
    """Return CRI-O's file for the runtime."""
    file = file or under_root(root, DROP_IN)
    around, later = _around(root, file)
    handler = default_handler(around)
    return ConfigLocation(
        (ConfigFile(file, CrioDropIn(around, later)),),
        RESTART,
        default=handler.get("runtime_path") or default_name(around),
    )


def registered_launcher(content: TomlTable) -> Path | None:
    """Return the launcher of gpushare's handler in `content`, None if there is no handler."""
    runtime = toml_text.table_at(copy.deepcopy(content), _RUNTIME)
    handler = runtime.get("runtimes", {}).get(NAME)
    return Path(str(handler.get("runtime_path", ""))) if handler else None


def default_name(content: TomlTable) -> str | None:
    """Return the name of the default handler in `content`."""
    chosen = toml_text.table_at(copy.deepcopy(content), _RUNTIME).get(_DEFAULT)
    return str(chosen) if chosen else None


def default_handler(around: TomlTable) -> TomlTable:
    """Return the settings of the handler of a pod without a RuntimeClass."""
    runtime = toml_text.table_at(copy.deepcopy(around), _RUNTIME)
    runtimes = runtime.get("runtimes", {})
    chosen = runtime.get(_DEFAULT) or ("crun" if "crun" in runtimes else "runc")
    handler: TomlTable = runtimes.get(chosen) or {}
    return handler


def _around(root: Path, ours: Path) -> tuple[TomlTable, str]:
    """Return the merged content of all files other than `ours`, and a default set after `ours`.

    Files in /etc take precedence over files with the same name elsewhere.
    """
    drop_ins: dict[str, Path] = {}
    for folder in FOLDERS:
        drop_ins |= {path.name: path for path in under_root(root, folder).glob("*")}
    result: TomlTable = {}
    later = ""
    for path in (under_root(root, MAIN), *(path for _, path in sorted(drop_ins.items()))):
        if path == ours or not path.is_file():
            continue
        content = toml_text.read(path)
        _merge(result, content)
        if path.parent == ours.parent and path.name > ours.name:
            later = default_name(content) or later
    return result, later


def _merge(into: TomlTable, content: TomlTable) -> None:
    for key, value in content.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = copy.deepcopy(value)
