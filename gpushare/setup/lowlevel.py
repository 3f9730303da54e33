# SPDX-License-Identifier: Apache-2.0
"""The low-level runtime that the launcher becomes: runc or crun, by its absolute path.

An engine's default may itself be a wrapper (NVIDIA's, or ours): what is wanted is what that runs.
Nothing may come to exec itself, so a wrapper is never taken, under whatever name.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

from gpushare import install
from gpushare.engines import toml_text
from gpushare.engines.errors import BadConfiguration
from gpushare.engines.place import beneath, text_of
from gpushare.errors import UserError

PROGRAMS: Final = ("runc", "crun")
FOLDERS: Final = (
    "/usr/bin",
    "/usr/sbin",
    "/usr/local/sbin",
    "/usr/local/bin",
    # What distributions of Kubernetes and CRI-O bring.
    "/usr/libexec/crio",
    "/var/lib/rancher/k3s/data/current/bin",
    "/var/lib/rancher/rke2/bin",
    "/var/lib/k0s/bin",
    "/snap/microk8s/current/bin",
)
OURS: Final = "gpushare-runtime"
NVIDIA: Final = "nvidia-container-runtime"  # and .cdi, .legacy, .experimental
NVIDIA_CONFIG: Final = Path("/etc/nvidia-container-runtime/config.toml")
_ANSWER_SECONDS: Final = 10


class NoRuntime(UserError):
    """No low-level runtime is on this machine, or it does not work."""


def find(root: Path = Path("/"), default: str | None = None) -> Path:
    """Return the low-level runtime beneath `root`; NoRuntime says what to install.

    `default` is what an engine runs now, by a path or a name: that, or what is beneath it, is
    taken before the first of PROGRAMS.
    """
    for name in (*beneath_wrapper(default, root), *PROGRAMS):
        for path in [Path(name)] if "/" in name else [Path(at) / name for at in FOLDERS]:
            if path.is_absolute() and _usable(beneath(root, path)):
                return path
    raise NoRuntime(f"there is no {' or '.join(PROGRAMS)} in {', '.join(FOLDERS)}; install runc")


def beneath_wrapper(program: str | None, root: Path = Path("/")) -> list[str]:
    """Return the runtimes that `program` would run, best first: itself where it is no wrapper."""
    if not program:
        return []
    name = Path(program).name
    if name.startswith(NVIDIA):
        return _of_nvidia(root)
    if name == OURS:
        installation = install.current(beneath(root, install.PREFIX))
        return [str(wrapped(installation.launcher))] if installation else []
    return [program]


def differs(launcher: Path, default: str | None) -> list[str]:
    """Return a remark where `launcher` becomes another program than an engine's default does."""
    try:
        ours, theirs = wrapped(launcher), find(default=default)
    except (OSError, NoRuntime):
        return []  # said by what looks at the installation
    if default is None or ours.resolve() == theirs.resolve():
        return []
    return [f"the default runtime runs {theirs}, {launcher.name} runs {ours}: `gpushare setup`"]


def wrapped(launcher: Path) -> Path:
    """Return the low-level runtime of an installed launcher; OSError without its flat file."""
    text = launcher.with_name(install.CONFIGURATION).read_text(encoding="utf-8")
    said = dict(line.split(" = ", 1) for line in text.splitlines() if " = " in line)
    return Path(said.get("runtime", ""))


def version(path: Path) -> str:
    """Return what the runtime says of itself ("runc version 1.1.5"); NoRuntime if it is none."""
    try:
        said = subprocess.run(
            [str(path), "--version"],
            capture_output=True,
            text=True,
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoRuntime(f"{path} --version: {error}") from error
    first = said.stdout.partition("\n")[0]
    if said.returncode or "version" not in first:
        raise NoRuntime(f"{path} --version says {first or said.stderr.strip()!r}: not a runtime")
    return first


def _usable(path: Path) -> bool:
    """Whether `path` can be run and is no wrapper: some link runc to NVIDIA's."""
    real = path.resolve().name
    return os.access(path, os.X_OK) and not real.startswith((NVIDIA, OURS))


def _of_nvidia(root: Path) -> list[str]:
    """Return what NVIDIA's runtime looks for. Source: its config.toml, `runtimes`."""
    try:
        found = toml_text.parse(text_of(beneath(root, NVIDIA_CONFIG)))
    except BadConfiguration:
        return []
    named = found.get(NVIDIA, {}).get("runtimes", [])
    return [name for name in named if isinstance(name, str)]
