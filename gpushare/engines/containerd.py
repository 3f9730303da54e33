# SPDX-License-Identifier: Apache-2.0
"""The runtime in one of containerd's files, for CRI (Kubernetes, crictl).

Source: containerd docs/cri/config.md; the CRI plugin has another name in each version of the file.
Which file that is: `imports` and `clusters`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpushare.engines import toml_text
from gpushare.engines.errors import BadConfiguration
from gpushare.engines.place import NAME
from gpushare.engines.toml_text import Name, Tree
from gpushare.quota.dialects import TABLES

ANNOTATIONS: Final = "gpushare.io/*"
MARK: Final = "# gpushare: `gpushare runtime unconfigure --runtime containerd` takes this away"
DEFAULT: Final = "default_runtime_name"
_PLUGINS: Final = {
    1: "cri",
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}
_RUNC: Final = "runc"
_RUNC_TYPE: Final = "io.containerd.runc.v2"
MERGES_SINCE: Final = 3  # the version of a file that only a containerd that merges (2.x) can read


@dataclass(frozen=True)
class Configuration:
    """A file of plain TOML.

    `around` is what holds besides it, where it is a drop-in of another: whose default handler is
    copied. `version` is a new file's. `keeps_runc`: the handler `runc` stays without being written;
    in a file of containerd 1.x a first handler takes the place of containerd's own.
    """

    around: Tree | None = field(default=None, repr=False)
    version: int = 2
    keeps_runc: bool = False

    def register(self, text: str, launcher: Path, *, default: bool) -> str:
        """Return `text` with the handler in it, as CRI's default where that is asked.

        The handler is a copy of the present default with our BinaryName and annotations: what the
        administrator chose there (SystemdCgroup) holds for ours too.
        """
        found = toml_text.parse(text)
        wanted = found or {"version": self.version}
        edited = text if found else toml_text.append(text, f"version = {self.version}")
        base = plugin(wanted)
        section = toml_text.at(wanted, base)
        runtimes = section.setdefault("runtimes", {})
        around = self._around() or section
        handler = handler_like(around, runtimes.get(NAME), launcher)
        if self._would_lose_runc(around, wanted):
            runtimes[_RUNC] = {"runtime_type": _RUNC_TYPE}
            edited = _with_table(edited, (*base, "runtimes", _RUNC), runtimes[_RUNC])
        if runtimes.get(NAME) != handler:
            name = (*base, "runtimes", NAME)
            runtimes[NAME] = handler
            edited = _with_table(toml_text.without(edited, name, MARK), name, handler)
        if default and section.get(DEFAULT) != NAME:
            section[DEFAULT] = NAME
            edited = toml_text.assign(edited, base, DEFAULT, NAME)
        return toml_text.proven(edited, wanted)

    def unregister(self, text: str, original: str) -> str:
        """Return `text` without the handler; the default becomes what it is in `original`."""
        wanted = toml_text.parse(text)
        base = plugin(wanted)
        section = toml_text.at(wanted, base)
        runtimes = section.get("runtimes", {})
        edited = toml_text.without(text, (*base, "runtimes", NAME), MARK)
        runtimes.pop(NAME, None)
        name = (*base, "runtimes", _RUNC)
        if runtimes.get(_RUNC) == {"runtime_type": _RUNC_TYPE} and toml_text.marked(
            text, name, MARK
        ):
            del runtimes[_RUNC]
            edited = toml_text.without(edited, name, MARK)
        if section.get(DEFAULT) == NAME:
            before = section_of(toml_text.parse(original)).get(DEFAULT)
            if before in {None, NAME}:
                del section[DEFAULT]
                before = None
            else:
                section[DEFAULT] = before
            edited = toml_text.assign(edited, base, DEFAULT, before)
        return toml_text.proven(edited, wanted)

    def registered(self, text: str) -> Path | None:
        """Return the launcher that `text` names, None when the handler is not in it."""
        return launcher_in(toml_text.parse(text))

    def is_default(self, text: str) -> bool:
        """Return whether pods get the handler without a RuntimeClass."""
        return bool(section_of(toml_text.parse(text)).get(DEFAULT) == NAME)

    def remarks(self, text: str) -> list[str]:
        """Return what the user should know of this configuration."""
        disabled = set(toml_text.parse(text).get("disabled_plugins", []))
        disabled |= set((self.around or {}).get("disabled_plugins", []))
        if disabled & {"cri", *_PLUGINS.values()}:
            return ["the CRI plugin is disabled here (disabled_plugins): Kubernetes cannot use it"]
        return []

    def _around(self) -> Tree | None:
        return section_of(self.around) if self.around is not None else None

    def _would_lose_runc(self, around: Tree, wanted: Tree) -> bool:
        """Whether CRI's own handler `runc` would be gone once ours is in the file."""
        merges = self.keeps_runc or wanted.get("version", 1) >= MERGES_SINCE
        return not merges and not set(around.get("runtimes", {})) - {NAME}


def _with_table(text: str, name: Name, content: Tree) -> str:
    return toml_text.append(text, f"\n{MARK}\n{toml_text.table(name, content)}")


def plugin(found: Tree) -> Name:
    """Return where CRI's runtimes are in a file of that version."""
    version = found.get("version", 1 if found else 2)
    if version not in _PLUGINS:
        raise BadConfiguration(
            f"version = {version} is not known here ({min(_PLUGINS)} to {max(_PLUGINS)} are)"
        )
    return ("plugins", _PLUGINS[version], "containerd")


def section_of(found: Tree) -> Tree:
    """Return CRI's table of runtimes in `found`, empty where it has none."""
    return toml_text.at(copy.deepcopy(found), plugin(found))


def launcher_in(found: Tree) -> Path | None:
    """Return the launcher of the handler in `found`, None where there is no handler."""
    handler = section_of(found).get("runtimes", {}).get(NAME)
    return Path(handler.get("options", {}).get("BinaryName", "")) if handler else None


def handler_like(section: Tree, ours: Tree | None, launcher: Path) -> Tree:
    """Return our handler: `ours` as it is there, or a copy of the default one of `section`."""
    runtimes = section.get("runtimes", {})
    handler: Tree = copy.deepcopy(ours or default_handler(section))
    if handler.get("runtime_type", _RUNC_TYPE) != _RUNC_TYPE:
        # Kata and gVisor have no BinaryName: our launcher is of the runc kind.
        handler = copy.deepcopy(runtimes.get(_RUNC) or {})
    handler["runtime_type"] = _RUNC_TYPE
    for key, globs in (
        ("pod_annotations", (ANNOTATIONS, *TABLES.annotation_globs())),
        ("container_annotations", (ANNOTATIONS,)),
    ):
        passed = handler.get(key) or []
        handler[key] = [*passed, *(glob for glob in globs if glob not in passed)]
    handler["options"] = {**handler.get("options", {}), "BinaryName": str(launcher)}
    return handler


def default_handler(section: Tree) -> Tree:
    """Return the handler that a pod without a RuntimeClass gets, but for ours."""
    runtimes = section.get("runtimes", {})
    chosen = section.get(DEFAULT, _RUNC)
    # microk8s' template names ${RUNTIME}, and ours may be the default already.
    found: Tree = (runtimes.get(chosen) if chosen != NAME else None) or runtimes.get(_RUNC) or {}
    return found
