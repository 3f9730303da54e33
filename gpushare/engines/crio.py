# SPDX-License-Identifier: Apache-2.0
"""The runtime in a drop-in of CRI-O's.

Tables of drop-ins are merged with those of the files before, key by key. `allowed_annotations` is
copied and gets nothing of ours: it lists CRI-O's own annotations, one that it does not know makes
it refuse to start, and others reach the spec unasked.
Source: crio.conf(5), crio.conf.d(5); cri-o pkg/config/config.go, RuntimeHandler.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpushare.engines import toml_text
from gpushare.engines.errors import BadConfiguration, EngineError
from gpushare.engines.place import NAME, File, Place, beneath, text_of
from gpushare.engines.toml_text import Name, Tree

MAIN: Final = Path("/etc/crio/crio.conf")
FOLDERS: Final = (Path("/usr/share/crio/crio.conf.d"), Path("/etc/crio/crio.conf.d"))
DROP_IN: Final = FOLDERS[-1] / f"99-{NAME}.conf"
RESTART: Final = "systemctl restart crio"
MARK: Final = "# gpushare: `gpushare runtime unconfigure --runtime crio` takes this away"
_RUNTIME: Final[Name] = ("crio", "runtime")
_DEFAULT: Final = "default_runtime"
_TYPE: Final = "oci"
# What our handler has of its own, and what a conmon-rs or a virtual machine would have.
_OWN: Final = frozenset({"runtime_path", "runtime_config_path", "inherit_default_runtime"})


@dataclass(frozen=True)
class DropIn:
    """A file of `crio.conf.d`; `around` is what the other files say together.

    `later` is the default that one says which is read after ours, empty where none does.
    """

    around: Tree = field(default_factory=dict, repr=False)
    later: str = ""

    def register(self, text: str, launcher: Path, *, default: bool) -> str:
        """Return `text` with the handler, a copy of the default one, around `launcher`."""
        wanted = toml_text.parse(text)
        runtime = toml_text.at(wanted, _RUNTIME)
        runtimes = runtime.setdefault("runtimes", {})
        handler = self._handler(runtimes.get(NAME), launcher)
        edited = text
        if default and runtime.get(_DEFAULT) != NAME:
            runtime[_DEFAULT] = NAME
            edited = toml_text.assign(edited, _RUNTIME, _DEFAULT, NAME)
        if runtimes.get(NAME) != handler:
            runtimes[NAME] = handler
            name = (*_RUNTIME, "runtimes", NAME)
            edited = toml_text.without(edited, name, MARK)
            edited = toml_text.append(edited, f"\n{MARK}\n{toml_text.table(name, handler)}")
        return toml_text.proven(edited, wanted)

    def unregister(self, text: str, original: str) -> str:
        """Return `text` without the handler; the default becomes what it is in `original`."""
        wanted = toml_text.parse(text)
        runtime = toml_text.at(wanted, _RUNTIME)
        edited = toml_text.without(text, (*_RUNTIME, "runtimes", NAME), MARK)
        runtime.get("runtimes", {}).pop(NAME, None)
        if runtime.get(_DEFAULT) == NAME:
            before = toml_text.at(toml_text.parse(original), _RUNTIME).get(_DEFAULT)
            edited = toml_text.assign(edited, _RUNTIME, _DEFAULT, before)
            del runtime[_DEFAULT]
            runtime |= {_DEFAULT: before} if before else {}
        return toml_text.proven(edited, wanted)

    def registered(self, text: str) -> Path | None:
        """Return the launcher that `text` names, None when the handler is not in it."""
        return launcher_in(toml_text.parse(text))

    def is_default(self, text: str) -> bool:
        """Return whether pods get the handler without a RuntimeClass."""
        return bool(toml_text.at(toml_text.parse(text), _RUNTIME).get(_DEFAULT) == NAME)

    def remarks(self, text: str) -> list[str]:
        """Return what the user should know of this configuration."""
        if self.is_default(text) and self.later not in {"", NAME}:
            return [f"a drop-in that is read later says {_DEFAULT} = {self.later}"]
        return []

    def _handler(self, ours: Tree | None, launcher: Path) -> Tree:
        handler = {
            key: value
            for key, value in copy.deepcopy(ours or default_handler(self.around)).items()
            if key not in _OWN
        }
        if handler.get("runtime_type", _TYPE) not in {"", _TYPE}:
            handler = {}  # a virtual machine's or conmon-rs': ours is of the runc kind
        return {"runtime_path": str(launcher), **handler, "runtime_type": _TYPE}


def place(root: Path = Path("/"), file: Path | None = None) -> Place:
    """Return where CRI-O is told."""
    file = file or beneath(root, DROP_IN)
    around, later = _around(root, file)
    handler = default_handler(around)
    return Place(
        (File(file, DropIn(around, later)),),
        RESTART,
        default=handler.get("runtime_path") or default_in(around),
    )


def launcher_in(found: Tree) -> Path | None:
    """Return the launcher of the handler in `found`, None where there is no handler."""
    runtime = toml_text.at(copy.deepcopy(found), _RUNTIME)
    handler = runtime.get("runtimes", {}).get(NAME)
    return Path(str(handler.get("runtime_path", ""))) if handler else None


def default_in(found: Tree) -> str | None:
    """Return the name of the default handler in `found`."""
    chosen = toml_text.at(copy.deepcopy(found), _RUNTIME).get(_DEFAULT)
    return str(chosen) if chosen else None


def default_handler(around: Tree) -> Tree:
    """Return what is said of the handler that a pod without a RuntimeClass gets."""
    runtime = toml_text.at(copy.deepcopy(around), _RUNTIME)
    runtimes = runtime.get("runtimes", {})
    chosen = runtime.get(_DEFAULT) or ("crun" if "crun" in runtimes else "runc")
    found: Tree = runtimes.get(chosen) or {}
    return found


def _around(root: Path, ours: Path) -> tuple[Tree, str]:
    """Return what all files but ours say together, and the default that one says after ours.

    Those of /etc hide others of their name.
    """
    drop_ins: dict[str, Path] = {}
    for folder in FOLDERS:
        drop_ins |= {path.name: path for path in beneath(root, folder).glob("*")}
    result: Tree = {}
    later = ""
    for path in (beneath(root, MAIN), *(path for _, path in sorted(drop_ins.items()))):
        if path == ours or not path.is_file():
            continue
        try:
            said = toml_text.parse(text_of(path))
        except BadConfiguration as error:
            raise EngineError(f"{path}:{error.line}: {error}; nothing was changed") from error
        _merge(result, said)
        if path.parent == ours.parent and path.name > ours.name:
            later = default_in(said) or later
    return result, later


def _merge(into: Tree, said: Tree) -> None:
    for key, value in said.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = copy.deepcopy(value)
