# SPDX-License-Identifier: Apache-2.0
"""Registration of the runtime in the configuration of container engines.

The syntax classes are pure: configuration text in, configuration text out, with every unknown part
unchanged byte for byte. This module lists the engines, with how each is detected, configured and
queried; `registration` reads and writes the files, `query` asks a running engine.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from gpushare.engines import (
    config_files,
    containerd,
    crio,
    docker_config,
    podman,
    query,
    systemd_unit,
)
from gpushare.engines.config_files import ConfigLocation, EngineError, under_root
from gpushare.engines.query import RuntimeReport
from gpushare.host import init_system

StatusWord = Literal["absent", "refused", "unregistered", "broken", "unread", "registered"]


@dataclass(frozen=True)
class Engine:
    """One engine. `signs` are files that only a machine with the engine has."""

    name: str
    program: str
    signs: tuple[Path, ...]
    locate: Callable[[Path, Path | None], ConfigLocation]
    query: Callable[[ConfigLocation], RuntimeReport]

    def is_present(self, root: Path = Path("/")) -> bool:
        """Return whether the engine is installed on this machine (or under `root`)."""
        if root == Path("/") and shutil.which(self.program):
            return True
        return any(under_root(root, sign).exists() for sign in self.signs)


def _containerd(root: Path, file: Path | None) -> ConfigLocation:
    """Locate the containerd of a Kubernetes distribution, otherwise the machine's own."""
    if file is not None:
        return containerd.locate_file(file, root) or containerd.locate(root, file)
    return containerd.find_distribution(root) or containerd.locate(root)


def _ordered(
    locate: Callable[[Path, Path | None], ConfigLocation], *services: str
) -> Callable[[Path, Path | None], ConfigLocation]:
    """Return `locate` with the drop-ins of the units that start its containers at boot."""

    def found(root: Path, file: Path | None) -> ConfigLocation:
        location = locate(root, file)
        if file is not None:  # if the user names a file, only that file is changed
            return location
        drop_ins = systemd_unit.ordering_drop_ins(location.services or services, root)
        return replace(location, files=(*location.files, *drop_ins))

    return found


ENGINES: Final = {
    engine.name: engine
    for engine in (
        Engine(
            "docker",
            "dockerd",
            (Path("/etc/docker"), docker_config.SNAP, *docker_config.DESKTOP),
            _ordered(docker_config.locate, "docker"),
            query.query_docker,
        ),
        Engine(
            "containerd",
            "containerd",
            (
                containerd.MAIN.parent,
                *(sign for sign, _ in containerd.CLUSTERS.values()),
            ),
            _ordered(_containerd, "containerd"),
            query.query_containerd,
        ),
        Engine(
            "crio", "crio", (crio.MAIN.parent,), _ordered(crio.locate, "crio"), query.query_crio
        ),
        Engine(
            "podman",
            "podman",
            (Path("/usr/bin/podman"),),
            _ordered(podman.locate, "podman-restart", "podman"),
            query.query_podman,
        ),
    )
}


def find(name: str) -> Engine:
    """Return the engine of that name; EngineError lists the known engines."""
    if name not in ENGINES:
        raise EngineError(f'"{name}" is not a known engine. Use one of {", ".join(ENGINES)}')
    return ENGINES[name]


@dataclass(frozen=True)
class EngineStatus:
    """One engine. `fix` is a command or a sentence, empty if no action is needed.

    `word` is "absent" (not installed), "refused" (cannot be configured, `text` has the reason),
    "unregistered", "broken" (the launcher is not executable), "unread" (the running engine has not
    loaded the configuration) or "registered".
    """

    engine: str
    word: StatusWord
    text: str
    fix: str = ""
    file: Path | None = None
    launcher: Path | None = None
    current: bool | None = None  # whether `launcher` is the installed one
    default: bool = False
    known: bool | None = None  # to the running engine; None: the query failed
    remarks: tuple[str, ...] = ()

    @property
    def well(self) -> bool:
        """Whether containers can use the runtime, as far as is known."""
        return self.word == "registered"


def engine_status(engine: Engine, installed: Path | None, root: Path = Path("/")) -> EngineStatus:
    """Return the status of `engine`; `installed` is the launcher that it should use."""
    if not engine.is_present(root):
        return EngineStatus(engine.name, "absent", "not on this machine")
    try:
        location = engine.locate(root, None)
        return _registered(engine, location, installed, root)
    except (EngineError, PermissionError) as error:
        return EngineStatus(engine.name, "refused", str(error))


def _registered(
    engine: Engine, location: ConfigLocation, installed: Path | None, root: Path
) -> EngineStatus:
    file = location.files[0]
    launcher = config_files.registered_launcher(file)
    configure = f"gpushare runtime configure --runtime {engine.name}"
    status = EngineStatus(
        engine.name, "unregistered", "runtime gpushare not registered", configure, file.path
    )
    if launcher is None:
        left = [other.path for other in location.left if config_files.registered_launcher(other)]
        remarks = tuple(f"{path} registers it, but {engine.name} does not use it" for path in left)
        return replace(status, remarks=remarks)
    text = file.path.read_text(encoding="utf-8")
    status = replace(
        status,
        launcher=launcher,
        current=None if installed is None else launcher.resolve() == installed.resolve(),
        default=file.syntax.is_default(text),
        remarks=tuple(file.syntax.remarks(text)),
    )
    if not os.access(_beneath(root, launcher), os.X_OK):
        return replace(
            status,
            word="broken",
            text=f"{launcher} does not exist",
            fix=f"gpushare setup; {configure}",
        )
    if status.current is False:
        status = replace(
            status, remarks=(*status.remarks, f"{launcher} is not the installed {installed}")
        )
    answer = (
        engine.query(location) if root == Path("/") else RuntimeReport(None, reason="another root")
    )
    return _answered(status, location, answer, launcher)


def _answered(
    status: EngineStatus, location: ConfigLocation, answer: RuntimeReport, launcher: Path
) -> EngineStatus:
    other = answer.known and answer.launcher is not None and answer.launcher != launcher
    if answer.known is False or other:
        text = f"runtime gpushare registered, but the running {status.engine} "
        text += f"runs {answer.launcher} for it" if other else "does not know it"
        text += f" ({answer.reason})" if answer.reason else " yet"
        return replace(
            status, word="unread", text=text, fix=init_system.advice(location.apply), known=False
        )
    default = status.default if answer.default is None else answer.default
    return replace(
        status,
        word="registered",
        text="runtime gpushare registered",
        fix="",
        known=answer.known,
        default=default,
        remarks=(
            *status.remarks,
            *([answer.reason] if answer.known is None and answer.reason else []),
        ),
    )


def _beneath(root: Path, path: Path) -> Path:
    return root / path.relative_to("/") if path.is_absolute() else path
