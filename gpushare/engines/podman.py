# SPDX-License-Identifier: Apache-2.0
"""The runtime in a drop-in of containers.conf, which each start of podman reads.

podman calls a runtime by its name, or by the base name of a path that it was given: both are in the
lists by which it knows what a runtime can. A list of a file takes the place of the one before, and
of podman's own, so what there was is written again with ours at its end.
Source: containers.conf(5); podman's libpod/oci_conmon_common.go.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpushare.engines import toml_text
from gpushare.engines.errors import BadConfiguration, EngineError
from gpushare.engines.hooks_d import HookFile
from gpushare.engines.place import NAME, File, Place, beneath, text_of
from gpushare.engines.toml_text import Tree

FILES: Final = (
    Path("/usr/share/containers/containers.conf"),
    Path("/etc/containers/containers.conf"),
)
FOLDERS: Final = (
    Path("/usr/share/containers/containers.conf.d"),
    Path("/etc/containers/containers.conf.d"),
)
DROP_IN: Final = FOLDERS[-1] / f"99-{NAME}.conf"
HOOKS: Final = Path("/usr/share/containers/oci/hooks.d")  # the one that podman reads unasked
MARK: Final = "# gpushare: `gpushare runtime unconfigure --runtime podman` takes this away"
# podman's own lists, 4.3 to 5.8; a name that one does not have yet makes no difference.
JSON: Final = ("crun", "runc", "kata", "runsc", "youki", "krun", "ocijail", "crun-vm")
_BASE_NAME: Final = "gpushare-runtime"
_JSON: Final = "runtime_supports_json"


@dataclass(frozen=True)
class ContainersConf:
    """A drop-in; `json` are the runtimes of which podman thinks without it that they log JSON."""

    json: tuple[str, ...] = JSON

    def register(self, text: str, launcher: Path, *, default: bool) -> str:
        """Return `text` with the runtime in it, as podman's default where that is asked."""
        wanted = toml_text.parse(text)
        engine = toml_text.at(wanted, ("engine",))
        if engine and MARK not in text:
            raise BadConfiguration(
                "has a table [engine] of its own; leave --config out, and a drop-in is written"
            )
        ours: Tree = {"runtime": NAME} if default else {}
        ours[_JSON] = _with_ours(engine.get(_JSON) or self.json)
        ours["runtimes"] = {**engine.get("runtimes", {}), NAME: [str(launcher)]}
        meant = {**engine, **ours}
        if meant == engine:
            return text
        wanted["engine"] = meant
        edited = toml_text.without(text, ("engine",), MARK)
        block = f"{MARK}\n{toml_text.table(('engine',), meant)}"
        return toml_text.proven(toml_text.append(edited, f"\n{block}"), wanted)

    def unregister(self, text: str, original: str) -> str:  # noqa: ARG002 - was none
        """Return `text` without the runtime; what else was written into [engine] since stays."""
        wanted = toml_text.parse(text)
        engine = toml_text.at(wanted, ("engine",))
        if engine.get("runtime") == NAME:
            del engine["runtime"]
        others = [name for name in engine.pop(_JSON, []) if name not in {*JSON, NAME, _BASE_NAME}]
        if others:
            engine[_JSON] = [*self.json, *(name for name in others if name not in self.json)]
        engine.get("runtimes", {}).pop(NAME, None)
        edited = toml_text.without(text, ("engine",), MARK)
        left = {key: value for key, value in engine.items() if value != {}}
        if left:
            edited = toml_text.append(edited, toml_text.table(("engine",), left))
        return toml_text.proven(edited, wanted)

    def registered(self, text: str) -> Path | None:
        """Return the launcher that `text` names, None when the runtime is not in it."""
        paths = toml_text.parse(text).get("engine", {}).get("runtimes", {}).get(NAME)
        return Path(str(paths[0])) if paths else None

    def is_default(self, text: str) -> bool:
        """Return whether containers get the runtime without asking for it."""
        return bool(toml_text.parse(text).get("engine", {}).get("runtime") == NAME)

    def remarks(self, text: str) -> list[str]:  # noqa: ARG002 - other syntaxes take it
        """Return what the user should know of this configuration."""
        return ["containers of users without root get no GPU: gpushare serves root's podman only"]


def place(root: Path = Path("/"), file: Path | None = None) -> Place:
    """Return where podman is told; one file that the user names is changed alone."""
    ours = file or beneath(root, DROP_IN)
    said = _said(root, ours)
    default = str(said.get("runtime") or "")
    syntax = ContainersConf(tuple(said.get(_JSON) or JSON))
    hooks = beneath(root, Path(next(iter(said.get("hooks_dir") or [HOOKS])))) / f"{NAME}.json"
    files = (File(ours, syntax),) if file else (File(ours, syntax), File(hooks, HookFile()))
    paths = said.get("runtimes", {}).get(default) if default != NAME else None
    return Place(files, "", default=(paths[0] if paths else default.replace(NAME, "")) or None)


def _said(root: Path, ours: Path) -> Tree:
    """Return the table `engine` as podman's files but ours say it together."""
    drop_ins = [path for folder in FOLDERS for path in sorted(beneath(root, folder).glob("*.conf"))]
    result: Tree = {}
    for path in (*(beneath(root, file) for file in FILES), *drop_ins):
        if path == ours:
            continue
        try:
            engine = toml_text.parse(text_of(path)).get("engine", {})
        except BadConfiguration as error:
            raise EngineError(f"{path}:{error.line}: {error}; nothing was changed") from error
        runtimes = {**result.get("runtimes", {}), **engine.get("runtimes", {})}
        supports = _appended(result.get(_JSON, JSON), engine.get(_JSON, []))
        result |= {**engine, "runtimes": runtimes, _JSON: supports}
    return result


def _appended(old: Iterable[Any], new: list[Any]) -> list[str]:
    """Return a list of names after a file; it says `{append = true}` where it adds to the others.

    Source: containers.conf(5), "attributed string slices", podman 5.
    """
    names = [name for name in new if isinstance(name, str)]
    adds = any(isinstance(item, dict) and item.get("append") for item in new)
    return [*old, *names] if adds or not new else names


def _with_ours(names: Iterable[str]) -> list[str]:
    kept = list(names)
    return [*kept, *(name for name in (NAME, _BASE_NAME) if name not in kept)]
