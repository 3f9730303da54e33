# SPDX-License-Identifier: Apache-2.0
"""The files that containerd reads, and which of them the handler belongs into.

What an imported file says of a plugin takes the place of everything that the files before it said
of that plugin (containerd 1.x), or is merged with it (2.x). So a drop-in with nothing but a handler
would, on 1.x, take SystemdCgroup, the snapshotter and even the handler `runc` away: there the
handler goes into the last file that speaks of CRI.
Source: containerd's mergeConfig; `containerd config dump` of 1.6, 1.7 and 2.1 was compared.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any, Final

from gpushare.engines import containerd, toml_text
from gpushare.engines.errors import BadConfiguration, EngineError
from gpushare.engines.place import NAME, File, Place, beneath, text_of

MAIN: Final = Path("/etc/containerd/config.toml")
SOCKET: Final = Path("/run/containerd/containerd.sock")
RESTART: Final = "systemctl restart containerd"
DROP_IN: Final = f"99-{NAME}.toml"


def place(root: Path = Path("/"), main: Path | None = None) -> Place:
    """Return where the handler goes on a machine whose containerd is started with `main`."""
    main = main or beneath(root, MAIN)
    files = read(root, main)
    version = int(files[main].get("version", 1)) if files[main] else 2
    dropped = drop_in(root, main, files[main]) if version >= containerd.MERGES_SINCE else None
    around = merged(
        [found for path, found in files.items() if path != dropped],
        deep=version >= containerd.MERGES_SINCE,
    )
    syntax = containerd.Configuration(around, version)
    have = [path for path in files if containerd.launcher_in(files[path]) is not None]
    if version >= containerd.MERGES_SINCE:
        path = next(iter([*have, *([dropped] if dropped else [])]), main)
    else:
        path = _last_with_cri(files)
    later = _later_default(files, path)
    return Place(
        (File(path, syntax),),
        RESTART,
        main=main,
        socket=SOCKET,
        default=program_of(containerd.default_handler(containerd.section_of(around))),
        remarks=(later,) if later else (),
        left=tuple(File(other, syntax) for other in have if other != path),
    )


def read(root: Path, main: Path) -> dict[Path, toml_text.Tree]:
    """Return what each file says, `main` first, in the order in which containerd reads them."""
    found: dict[Path, toml_text.Tree] = {}
    pending = [main]
    while pending:
        path = pending.pop(0)
        if path in found:
            continue
        try:
            found[path] = toml_text.parse(text_of(path))
        except BadConfiguration as error:
            line = f":{error.line}" if error.line else ""
            raise EngineError(f"{path}{line}: {error}; nothing was changed") from error
        for pattern in _patterns(found[path], root, path):
            pending += sorted(Path("/").glob(pattern.lstrip("/")))
    return found


def drop_in(root: Path, main: Path, said: toml_text.Tree) -> Path | None:
    """Return the file of ours that `main` imports as it stands, None where it imports no folder."""
    for pattern in _patterns(said, root, main):
        folder, name = os.path.split(pattern)
        if name == "*.toml" and "*" not in folder:
            return Path(folder) / DROP_IN
    return None


def merged(files: list[toml_text.Tree], *, deep: bool) -> toml_text.Tree:
    """Return what containerd makes of its files, in the order in which it reads them."""
    result: toml_text.Tree = copy.deepcopy(files[0])
    for found in files[1:]:
        plugins = result.setdefault("plugins", {})
        for name, said in found.get("plugins", {}).items():
            plugins[name] = _deep(plugins.get(name), said) if deep else copy.deepcopy(said)
        disabled = found.get("disabled_plugins", [])
        result["disabled_plugins"] = [*result.get("disabled_plugins", []), *disabled]
    return result


def program_of(handler: toml_text.Tree) -> str | None:
    """Return the low-level runtime of a handler, None where containerd chooses."""
    return handler.get("options", {}).get("BinaryName") or None


def _deep(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: _deep(old.get(key), value) for key, value in new.items()}}
    return copy.deepcopy(new)


def _patterns(said: toml_text.Tree, root: Path, parent: Path) -> list[str]:
    """Return the imports of a file as absolute patterns; relative ones are beside it."""
    patterns: list[str] = []
    for name in said.get("imports", []):
        absolute = Path(name).is_absolute()
        patterns.append(str(beneath(root, Path(name)) if absolute else parent.parent / name))
    return patterns


def _last_with_cri(files: dict[Path, toml_text.Tree]) -> Path:
    """Return the last file that says anything of CRI; the first where none does."""
    paths = list(files)
    for path in reversed(paths):
        if containerd.section_of(files[path]) or _plugin_named(files[path]):
            return path
    return paths[0]


def _plugin_named(found: toml_text.Tree) -> bool:
    return containerd.plugin(found)[1] in found.get("plugins", {})


def _later_default(files: dict[Path, toml_text.Tree], ours: Path) -> str:
    """Return a remark where a file that is read after ours names another default."""
    order = sorted({*files, ours}, key=list(files).index) if ours in files else [*files, ours]
    if ours not in files:  # a folder's files are read by name
        order.sort(
            key=lambda path: (path.parent == ours.parent, path.name * (path.parent == ours.parent))
        )
    for path in order[order.index(ours) + 1 :]:
        chosen = containerd.section_of(files[path]).get(containerd.DEFAULT)
        if chosen not in {None, NAME}:
            return f"{path} is read later and says {containerd.DEFAULT} = {chosen}"
    return ""
