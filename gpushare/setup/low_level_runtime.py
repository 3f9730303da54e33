# SPDX-License-Identifier: Apache-2.0
"""The low-level runtime that the launcher runs: runc or crun, by its absolute path.

An engine's default runtime may itself be a wrapper (NVIDIA's, or gpushare's). The launcher then
needs the runtime that the wrapper runs. A wrapper is never selected, whatever its name, so that no
program can execute itself.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

from gpushare import install
from gpushare.engines import toml_text
from gpushare.engines.config_files import BadConfiguration, read_text, under_root
from gpushare.errors import UserError
from gpushare.host import cgroups

PROGRAMS: Final = ("runc", "crun")
#: Their programs run on a kernel of their own, gVisor's or a virtual machine's.
SANDBOXES: Final = ("runsc", "kata-runtime", "krun", "crun-vm")
FOLDERS: Final = (
    "/usr/bin",
    "/usr/sbin",
    "/usr/local/sbin",
    "/usr/local/bin",
    # Folders of Kubernetes distributions and CRI-O.
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


#: docs/measurements/starts.md has the figures.
CRUN_GAIN: Final = "it creates a container with a GPU in two thirds of runc's time"


class NoRuntime(UserError):
    """No low-level runtime is installed, or it does not work."""


def find_runtime(root: Path = Path("/"), default: str | None = None) -> Path:
    """Return the low-level runtime under `root`; NoRuntime if none is installed.

    `default` is an engine's current default runtime, a path or a name. It, or the runtime that it
    wraps, takes precedence over PROGRAMS.
    """
    for name in (*unwrap(default, root), *PROGRAMS):
        _refuse_sandbox(name, "the engine's default runtime")
        if path := _found(name, root):
            return path
    raise NoRuntime(f"{' or '.join(PROGRAMS)} not found in {', '.join(FOLDERS)}. Install runc")


def chosen_runtime(name: str, root: Path = Path("/")) -> Path:
    """Return the runtime that the user chose by `name`, or by its path; NoRuntime if it is not it.

    It may be one that an engine's default runtime does not run.
    """
    _refuse_sandbox(name, f"--low-level {name}")
    if path := _found(name, root):
        return path
    where = "" if "/" in name else f" in {', '.join(FOLDERS)}"
    raise NoRuntime(f"--low-level {name}: no low-level runtime{where}. Install it, or choose runc")


def _refuse_sandbox(name: str, what: str) -> None:
    if Path(name).name in SANDBOXES:
        raise NoRuntime(
            f"{what}: {Path(name).name} runs programs on a kernel of its own, so neither the "
            "quotas of gpushare's library nor its audit would hold. For containers with a GPU, "
            "choose runc or crun: gpushare setup --low-level runc"
        )


def faster_runtime(runtime: Path, root: Path = Path("/")) -> str:
    """Return a line that offers crun where setup uses another one, "" where crun cannot be used."""
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    is_refused = root == Path("/") and cgroups.layout(mounts) == "hybrid"
    if runtime.name == "crun" or is_refused:
        return ""
    if path := _found("crun", root):
        return f"{path} is installed: {CRUN_GAIN}. To use it: gpushare setup --low-level crun"
    return ""


def unwrap(program: str | None, root: Path = Path("/")) -> list[str]:
    """Return the runtimes that `program` would run, best first; itself if it is not a wrapper."""
    if not program:
        return []
    name = Path(program).name
    if name.startswith(NVIDIA):
        return _of_nvidia(root)
    if name == OURS:
        installation = install.current(under_root(root, install.PREFIX))
        return [str(wrapped_runtime(installation.launcher))] if installation else []
    return [program]


def runtime_mismatch(launcher: Path, default: str | None) -> list[str]:
    """Return a warning if `launcher` runs another program than an engine's default runtime."""
    try:
        ours, theirs = wrapped_runtime(launcher), find_runtime(default=default)
    except (OSError, NoRuntime):
        return []  # the check of the installation reports it
    if default is None or ours.resolve() == theirs.resolve():
        return []
    return [f"the default runtime runs {theirs}, {launcher.name} runs {ours}: `gpushare setup`"]


def wrapped_runtime(launcher: Path) -> Path:
    """Return the low-level runtime of an installed launcher; OSError without its configuration."""
    text = launcher.with_name(install.CONFIGURATION).read_text(encoding="utf-8")
    done = dict(line.split(" = ", 1) for line in text.splitlines() if " = " in line)
    return Path(done.get("runtime", ""))


def runtime_version(path: Path) -> str:
    """Return the version line of a runtime ("runc version 1.1.5"); NoRuntime if it is not one."""
    try:
        done = subprocess.run(
            [str(path), "--version"],
            capture_output=True,
            text=True,
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoRuntime(f"{path} --version: {error}") from error
    first = done.stdout.partition("\n")[0]
    if done.returncode or "version" not in first:
        raise NoRuntime(f"{path} --version prints {first or done.stderr.strip()!r}: not a runtime")
    return first


def _found(name: str, root: Path) -> Path | None:
    """Return the usable runtime of a name, or of an absolute path, under `root`."""
    paths = [Path(name)] if "/" in name else [Path(folder) / name for folder in FOLDERS]
    usable = (path for path in paths if path.is_absolute() and _usable(under_root(root, path)))
    return next(usable, None)


def _usable(path: Path) -> bool:
    """Whether `path` is executable and not a wrapper: runc may be a link to NVIDIA's runtime."""
    real = path.resolve().name
    return os.access(path, os.X_OK) and not real.startswith((NVIDIA, OURS))


def _of_nvidia(root: Path) -> list[str]:
    """Return the runtimes that NVIDIA's runtime searches. Source: its config.toml, `runtimes`."""
    try:
        configuration = toml_text.parse(read_text(under_root(root, NVIDIA_CONFIG)))
    except BadConfiguration:
        return []
    named = configuration.get(NVIDIA, {}).get("runtimes", [])
    return [name for name in named if isinstance(name, str)]
