# SPDX-License-Identifier: Apache-2.0
"""The runtime in a drop-in of containers.conf, which podman reads at each start.

podman identifies a runtime by its name or by the base name of its path, and lists of such names
define a runtime's features. A list in one file replaces the lists of earlier files and podman's
built-in list, so gpushare writes the existing list again with its own names at the end.
Source: containers.conf(5); podman's libpod/oci_conmon_common.go.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from gpushare.engines import json_text, toml_text
from gpushare.engines.config_files import (
    NAME,
    BadConfiguration,
    ConfigFile,
    ConfigLocation,
    OwnFile,
    Syntax,
    UndoneBy,
    under_root,
)
from gpushare.engines.toml_text import TomlTable

FILES: Final = (
    Path("/usr/share/containers/containers.conf"),
    Path("/etc/containers/containers.conf"),
)
FOLDERS: Final = (
    Path("/usr/share/containers/containers.conf.d"),
    Path("/etc/containers/containers.conf.d"),
)
DROP_IN: Final = FOLDERS[-1] / f"99-{NAME}.conf"
HOOKS: Final = Path("/usr/share/containers/oci/hooks.d")  # podman's default
MARK: Final = "# gpushare: `gpushare runtime unconfigure --runtime podman` removes this"
# podman's built-in lists, 4.3 to 5.8; unknown names have no effect.
JSON: Final = ("crun", "runc", "kata", "runsc", "youki", "krun", "ocijail", "crun-vm")
_BASE_NAME: Final = "gpushare-runtime"
_JSON: Final = "runtime_supports_json"


@dataclass(frozen=True)
class ContainersConf(Syntax):
    """A drop-in; `json` are the runtimes that podman would treat as logging JSON without it."""

    json: tuple[str, ...] = JSON

    undone_by: ClassVar[UndoneBy] = "toml"

    def register(self, text: str, launcher: Path, *, default: bool) -> str:
        """Return `text` with the runtime, as podman's default if requested."""
        wanted = toml_text.parse(text)
        engine = toml_text.table_at(wanted, ("engine",))
        if engine and MARK not in text:
            raise BadConfiguration(
                "the file has its own table [engine]. Omit --config to write a drop-in"
            )
        ours: TomlTable = {"runtime": NAME} if default else {}
        ours[_JSON] = _with_ours(engine.get(_JSON) or self.json)
        ours["runtimes"] = {**engine.get("runtimes", {}), NAME: [str(launcher)]}
        meant = {**engine, **ours}
        if meant == engine:
            return text
        wanted["engine"] = meant
        edited = toml_text.remove_table(text, ("engine",), MARK)
        block = f"{MARK}\n{toml_text.format_table(('engine',), meant)}"
        return toml_text.verified(toml_text.append(edited, f"\n{block}"), wanted)

    def unregister(self, text: str, original: str) -> str:  # noqa: ARG002 - was none
        """Return `text` without the runtime; other settings added to [engine] since are kept."""
        wanted = toml_text.parse(text)
        engine = toml_text.table_at(wanted, ("engine",))
        if engine.get("runtime") == NAME:
            del engine["runtime"]
        others = [name for name in engine.pop(_JSON, []) if name not in {*JSON, NAME, _BASE_NAME}]
        if others:
            engine[_JSON] = [*self.json, *(name for name in others if name not in self.json)]
        engine.get("runtimes", {}).pop(NAME, None)
        edited = toml_text.remove_table(text, ("engine",), MARK)
        left = {key: value for key, value in engine.items() if value != {}}
        if left:
            edited = toml_text.append(edited, toml_text.format_table(("engine",), left))
        return toml_text.verified(edited, wanted)

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


def locate(root: Path = Path("/"), file: Path | None = None) -> ConfigLocation:
    """Return podman's files; if the user names a file, only that file is changed."""
    ours = file or under_root(root, DROP_IN)
    engine_table = _engine_table(root, ours)
    default = str(engine_table.get("runtime") or "")
    syntax = ContainersConf(tuple(engine_table.get(_JSON) or JSON))
    hooks = (
        under_root(root, Path(next(iter(engine_table.get("hooks_dir") or [HOOKS]))))
        / f"{NAME}.json"
    )
    files = (
        (ConfigFile(ours, syntax),)
        if file
        else (ConfigFile(ours, syntax), ConfigFile(hooks, HookFile()))
    )
    paths = engine_table.get("runtimes", {}).get(default) if default != NAME else None
    return ConfigLocation(
        files, "", default=(paths[0] if paths else default.replace(NAME, "")) or None
    )


def _engine_table(root: Path, ours: Path) -> TomlTable:
    """Return the table `engine` that results from podman's files other than `ours`."""
    drop_ins = [
        path for folder in FOLDERS for path in sorted(under_root(root, folder).glob("*.conf"))
    ]
    result: TomlTable = {}
    for path in (*(under_root(root, file) for file in FILES), *drop_ins):
        if path == ours:
            continue
        engine = toml_text.read(path).get("engine", {})
        runtimes = {**result.get("runtimes", {}), **engine.get("runtimes", {})}
        supports = _appended(result.get(_JSON, JSON), engine.get(_JSON, []))
        result |= {**engine, "runtimes": runtimes, _JSON: supports}
    return result


def _appended(old: Iterable[Any], new: list[Any]) -> list[str]:
    """Return the list of names after a file, which adds to `old` if it has `{append = true}`.

    Source: containers.conf(5), "attributed string slices", podman 5.
    """
    names = [name for name in new if isinstance(name, str)]
    adds = any(isinstance(item, dict) and item.get("append") for item in new)
    return [*old, *names] if adds or not new else names


def _with_ours(names: Iterable[str]) -> list[str]:
    kept = list(names)
    return [*kept, *(name for name in (NAME, _BASE_NAME) if name not in kept)]


HOOK: Final = "gpushare-hook"
_TIMEOUT_SECONDS: Final = 60
_PATH: Final = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"


class HookFile(OwnFile):
    """The hook that podman runs for every container with a request."""

    def register(self, text: str, launcher: Path, *, default: bool) -> str:  # noqa: ARG002
        """Return the file for the hook next to `launcher`."""
        return json.dumps(_content(launcher.with_name(HOOK)), indent="\t") + "\n"

    def registered(self, text: str) -> Path | None:
        """Return the launcher next to the hook in `text`."""
        hook = json_text.parse(text).get("hook", {}) if text.strip() else {}
        return Path(str(hook["path"])).with_name("gpushare-runtime") if hook.get("path") else None


def _content(hook: Path) -> dict[str, Any]:
    return {
        "version": "1.0.0",
        "hook": {
            "path": str(hook),
            "args": [HOOK, "createRuntime"],
            "env": [_PATH],
            "timeout": _TIMEOUT_SECONDS,
        },
        "when": {"annotations": {r"^gpushare\.io/.*$": ".*"}},
        "stages": ["createRuntime"],
    }
