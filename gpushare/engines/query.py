# SPDX-License-Identifier: Apache-2.0
"""Asks a running engine about the runtime, with the engine's own programs.

The files show what an engine will do after its next start; only the engine itself knows its current
configuration.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpushare.engines import containerd, crio, toml_text
from gpushare.engines.config_files import NAME, BadConfiguration, EngineError

if TYPE_CHECKING:
    from gpushare.engines.config_files import ConfigLocation

PROC: Final = Path("/proc")
_STARTTIME: Final = 22 - 3  # the field of /proc/PID/stat, counted from the one after the name
_ENDED: Final = frozenset("ZXx")  # its third field: zombie, dead (proc(5))
_ANSWER_SECONDS: Final = 10.0


@dataclass(frozen=True)
class EngineProcess:
    """A process; `started` in seconds since the epoch."""

    pid: int
    words: tuple[str, ...]
    started: float

    def value(self, *flags: str) -> str | None:
        """Return the value of one of `flags` in the command line, None if there is none."""
        for word, following in zip(self.words, (*self.words[1:], ""), strict=True):
            name, equals, value = word.partition("=")
            if name in flags:
                return value if equals else following
        return None


def find_processes(
    name: str, proc: Path = PROC, booted: float | None = None
) -> list[EngineProcess]:
    """Return the running processes whose command is `name` (comm: at most 15 bytes), oldest first.

    A zombie does not run, however long it is not reaped. Any user may call a program `name`, and a
    container may have an engine of its own: only processes of root, or of this user, that have this
    machine's root directory count.

    `booted` is when the machine started, in seconds since the epoch, None: this one, to the tick
    (/proc/stat has whole seconds only).
    """
    if booted is None:
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    processes: list[EngineProcess] = []
    for folder in proc.glob("[0-9]*"):
        try:
            stat = os.fsdecode((folder / "stat").read_bytes())
            words = os.fsdecode((folder / "cmdline").read_bytes()).rstrip("\0").split("\0")
        except OSError:
            continue  # it has exited
        before, _, after = stat.rpartition(")")
        fields = after.split()
        if before.partition("(")[2] == name[:15] and fields[0] not in _ENDED and _is_ours(folder):
            ticks = int(fields[_STARTTIME])
            started = booted + ticks / os.sysconf("SC_CLK_TCK")
            processes.append(EngineProcess(int(folder.name), tuple(words), started))
    return sorted(processes, key=lambda process: process.started)


def _is_ours(folder: Path) -> bool:
    """Whether the process of `folder`, beneath /proc, can be an engine of this machine."""
    try:
        status = (folder / "status").read_bytes()
        uids = next(line.split() for line in status.splitlines() if line.startswith(b"Uid:"))
        if int(uids[2]) not in {0, os.geteuid()}:
            return False
        return os.path.samestat((folder / "root").stat(), Path("/").stat())
    except (OSError, StopIteration):
        return True  # it may not be looked at: count it, as an engine that runs is the usual case


@dataclass(frozen=True)
class RuntimeReport:
    """The engine's answer. `launcher` is the program that it runs for the runtime, or None.

    `known` is None if the query failed; `reason` is then the reason. If `known` is
    False, `reason` is a problem that a restart of the engine does not solve.
    """

    known: bool | None
    default: bool | None = None
    launcher: Path | None = None
    reason: str = ""


def query_docker(_place: ConfigLocation) -> RuntimeReport:
    """Ask `docker info`."""
    output = _run("docker", "info", "--format", "{{json .}}")
    if isinstance(output, str):
        try:
            info = json.loads(output)
        except json.JSONDecodeError:
            return RuntimeReport(None, reason="docker info did not print JSON")
        if errors := info.get("ServerErrors"):
            return RuntimeReport(None, reason=f"docker is not responding: {errors[0]}")
        entry = (info.get("Runtimes") or {}).get(NAME) or {}
        default = info.get("DefaultRuntime") == NAME
        return RuntimeReport(bool(entry), default, _path(entry.get("path")))
    return output


def query_containerd(location: ConfigLocation) -> RuntimeReport:
    """Ask CRI through crictl; without crictl, compare containerd's start time with its files."""
    if location.socket is not None and shutil.which("crictl"):
        endpoint = f"unix://{location.socket}"
        output = _run("crictl", "--runtime-endpoint", endpoint, "--timeout", "5s", "info")
        if isinstance(output, str):
            return _of_status(json.loads(output).get("config", {}).get("containerd", {}))
    return _younger_than_files(location)


def query_crio(_place: ConfigLocation) -> RuntimeReport:
    """Ask `crio status config` (crio-status before 1.24)."""
    for command in (("crio", "status", "config"), ("crio-status", "config")):
        output = _run(*command)
        if isinstance(output, str):
            try:
                content = toml_text.parse(output)
            except BadConfiguration as error:
                return RuntimeReport(
                    None, reason=f"{' '.join(command)} did not print TOML: {error}"
                )
            launcher = crio.registered_launcher(content)
            return RuntimeReport(launcher is not None, crio.default_name(content) == NAME, launcher)
    return RuntimeReport(None, reason="crio is not running or not installed")


def query_podman(_place: ConfigLocation) -> RuntimeReport:
    """Ask `podman info`, once for the runtime and once for the default."""
    output = _run("podman", "--runtime", NAME, "info", "--format", "json")
    if not isinstance(output, str):
        # podman's message for a runtime without a path.
        lacks = "not found" in output.reason and NAME in output.reason
        return RuntimeReport(False, False, reason=output.reason) if lacks else output
    usual = _run("podman", "info", "--format", "json")
    runtime = json.loads(output)["host"]["ociRuntime"]
    default = isinstance(usual, str) and json.loads(usual)["host"]["ociRuntime"]["name"] == NAME
    return RuntimeReport(True, default, _path(runtime.get("path")))


def _of_status(status: dict[str, Any]) -> RuntimeReport:
    """Return the answer in CRI's Status; its keys are Go's or TOML's, depending on the version."""
    runtimes = status.get("runtimes") or {}
    handler = runtimes.get(NAME) or {}
    options = handler.get("options") or {}
    default = status.get("defaultRuntimeName", status.get(containerd.DEFAULT)) == NAME
    return RuntimeReport(bool(handler), default, _path(options.get("BinaryName")))


def _younger_than_files(location: ConfigLocation) -> RuntimeReport:
    written = query_files(location)
    if written.known is False:
        return written
    main = (location.main or containerd.MAIN).resolve()
    running = [
        process
        for process in find_processes("containerd")
        if Path(process.value("--config", "-c") or containerd.MAIN).resolve() == main
    ]
    if not running:
        return RuntimeReport(None, reason=f"{location.owner or 'containerd'} is not running")
    files = [path for path in (location.path, main) if path.exists()]
    changed = max((path.stat().st_mtime for path in files), default=0.0)
    return RuntimeReport(False) if running[0].started < changed else written


def query_files(location: ConfigLocation) -> RuntimeReport:
    """Return what a containerd started now would know.

    `known` is False, with the reason, if it would not start or would not load the handler.
    """
    if location.owner:
        return _of_generated(location)
    words = ("containerd", "--config", str(location.main), "config", "dump")
    output = _run(*words)
    if not isinstance(output, str):
        missing = shutil.which("containerd") is None
        return RuntimeReport(None if missing else False, reason=output.reason)
    try:
        content = toml_text.parse(output)
    except BadConfiguration as error:
        return RuntimeReport(None, reason=f"{' '.join(words)}: {error}")
    answer = _of_tree(content)
    return (
        answer
        if answer.known
        else RuntimeReport(False, reason=f"{' '.join(words)} has no such handler")
    )


def _of_generated(location: ConfigLocation) -> RuntimeReport:
    """Return the content of the files that a Kubernetes distribution generated at its start."""
    main = location.main or containerd.MAIN
    try:
        files = containerd.read_files(Path("/"), main)
    except EngineError as error:
        return RuntimeReport(None, reason=str(error))
    answer = _of_tree(containerd.merge_files(list(files.values()), deep=True))
    # The next start generates them again, with the handler.
    return (
        answer
        if answer.known
        else RuntimeReport(None, reason=f"{location.owner} has not regenerated {main} yet")
    )


def _of_tree(content: toml_text.TomlTable) -> RuntimeReport:
    launcher = containerd.registered_launcher(content)
    default = containerd.cri_section(content).get(containerd.DEFAULT) == NAME
    return RuntimeReport(launcher is not None, default, launcher)


#: Since Debian 13, docker.io contains only dockerd.
_INSTALL: Final = {"docker": "install docker-cli (from docker.com: docker-ce-cli)"}


def _run(*command: str) -> str | RuntimeReport:
    """Return the output of `command`, or a report with the reason why there is none."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False
        )
    except FileNotFoundError:
        fix = _INSTALL.get(command[0], f"install {command[0]}")
        return RuntimeReport(None, reason=f"the command {command[0]} is not installed; {fix}")
    except (OSError, subprocess.TimeoutExpired) as error:
        return RuntimeReport(None, reason=f"{' '.join(command)}: {error}")
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        reason = lines[-1] if lines else f"exit status {done.returncode}"
        fix = "; use sudo" if "permission denied" in reason.lower() else ""
        return RuntimeReport(None, reason=f"{' '.join(command)}: {reason}{fix}")
    return done.stdout


def _path(value: object) -> Path | None:
    return Path(value) if isinstance(value, str) and value else None
