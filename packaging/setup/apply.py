# SPDX-License-Identifier: Apache-2.0
"""Performs a plan: installs with apt, or unpacks under build/tools/ packages that conflict."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import machine
import plan
import services

APT = (
    "apt-get",
    "--yes",
    "--no-remove",
    "--no-install-recommends",
    "-o",
    "DPkg::Lock::Timeout=300",
)


class StepError(Exception):
    """A step of the set-up failed. The message names the step and suggests a fix."""


def update(log: Path) -> None:
    """Update apt's package lists."""
    run(("apt-get", "update"), log)


def install(packages: Sequence[str], log: Path) -> None:
    """Install `packages` as root, without removing packages or starting or enabling services."""
    with services.none_started(), services.none_enabled():
        run((*APT, "install", *packages), log)


def unpack(packages: Sequence[str], tools: Path, log: Path) -> None:
    """Unpack `packages` with missing dependencies, and link their programs in tools/bin."""
    tools.mkdir(parents=True, exist_ok=True)
    wanted: set[str] = set()
    for package in packages:
        wanted |= {*plan.unpacked_with(package, machine.simulate([package]))}
    with tempfile.TemporaryDirectory(prefix="gpushare-setup-") as folder:
        Path(folder).chmod(0o755)  # apt fetches as its own user
        run(("apt-get", "download", *sorted(wanted)), log, cwd=Path(folder))
        for archive in sorted(Path(folder).glob("*.deb")):
            run(("dpkg-deb", "--extract", str(archive), str(tools)), log)
    _link_programs(tools, tools / "bin")


def _link_programs(root: Path, bin_folder: Path) -> None:
    bin_folder.mkdir(exist_ok=True)
    libraries = sorted(
        {str(path.parent) for top in ("lib", "usr/lib") for path in root.glob(f"{top}/**/*.so.*")}
    )
    for folder in ("usr/bin", "usr/sbin", "bin", "sbin", "usr/libexec/docker"):
        for program in (root / folder).glob("*"):
            link = bin_folder / program.name
            if not os.access(program, os.X_OK) or link.exists():
                continue
            if _lacks_libraries(program):
                link.write_text(
                    f"#!/bin/sh\nLD_LIBRARY_PATH='{':'.join(libraries)}' exec '{program}' \"$@\"\n"
                )
                link.chmod(0o755)
            else:
                link.symlink_to(program)


def _lacks_libraries(program: Path) -> bool:
    done = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False)
    return "not found" in done.stdout


def run(command: Sequence[str], log: Path, cwd: Path | None = None) -> None:
    """Run `command` with its output in `log`; StepError with the end of the output if it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"},
            cwd=cwd,
            check=False,
        )
    if done.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise StepError(
            f"{' '.join(command)}: exit status {done.returncode}\n{tail}\n(full output: {log})"
        )


def missing_after(tools: Path, parts: Sequence[str]) -> list[str]:
    """Return the programs of `parts` that are still missing."""
    path = machine.search_path(tools)
    programs = (need.program for need in plan.needs(parts))
    return [program for program in programs if shutil.which(program, path=path) is None]


def say(message: str) -> None:
    """Print one line of progress to stderr, because stdout is for the command that follows."""
    print(f"setup: {message}", file=sys.stderr, flush=True)
