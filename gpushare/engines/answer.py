# SPDX-License-Identifier: Apache-2.0
"""What a running engine says of the runtime, asked by its own programs.

A file says what an engine will do; only the engine says what it does.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpushare.engines import containerd, crio, imports, processes, toml_text
from gpushare.engines.errors import BadConfiguration, EngineError
from gpushare.engines.place import NAME

if TYPE_CHECKING:
    from gpushare.engines.place import Place

_ANSWER_SECONDS: Final = 10.0


@dataclass(frozen=True)
class Answer:
    """What the engine knows. `launcher` is what it runs for the runtime, None where it has none.

    `known` is None where it was not found out, and `why` says why; `why` of False is what the
    engine lacks beyond a new start.
    """

    known: bool | None
    default: bool | None = None
    launcher: Path | None = None
    why: str = ""


def of_docker(_place: Place) -> Answer:
    """Ask `docker info`."""
    said = _run("docker", "info", "--format", "{{json .}}")
    if isinstance(said, str):
        try:
            info = json.loads(said)
        except json.JSONDecodeError:
            return Answer(None, why="docker info answers no JSON")
        if errors := info.get("ServerErrors"):
            return Answer(None, why=f"docker does not answer: {errors[0]}")
        entry = (info.get("Runtimes") or {}).get(NAME) or {}
        default = info.get("DefaultRuntime") == NAME
        return Answer(bool(entry), default, _path(entry.get("path")))
    return said


def of_containerd(place: Place) -> Answer:
    """Ask CRI by crictl; without crictl, see whether containerd is younger than its files."""
    if place.socket is not None and shutil.which("crictl"):
        endpoint = f"unix://{place.socket}"
        said = _run("crictl", "--runtime-endpoint", endpoint, "--timeout", "5s", "info")
        if isinstance(said, str):
            return _of_status(json.loads(said).get("config", {}).get("containerd", {}))
    return _younger_than_files(place)


def of_crio(_place: Place) -> Answer:
    """Ask `crio status config` (crio-status before 1.24)."""
    for command in (("crio", "status", "config"), ("crio-status", "config")):
        said = _run(*command)
        if isinstance(said, str):
            try:
                found = toml_text.parse(said)
            except BadConfiguration as error:
                return Answer(None, why=f"{' '.join(command)} answers no TOML: {error}")
            launcher = crio.launcher_in(found)
            return Answer(launcher is not None, crio.default_in(found) == NAME, launcher)
    return Answer(None, why="crio does not run, or there is no crio to ask")


def of_podman(_place: Place) -> Answer:
    """Ask `podman info`, once for the runtime and once for the default."""
    said = _run("podman", "--runtime", NAME, "info", "--format", "json")
    if not isinstance(said, str):
        # podman's own words for a name that it has no path for.
        lacks = "not found" in said.why and NAME in said.why
        return Answer(False, False, why=said.why) if lacks else said
    usual = _run("podman", "info", "--format", "json")
    runtime = json.loads(said)["host"]["ociRuntime"]
    default = isinstance(usual, str) and json.loads(usual)["host"]["ociRuntime"]["name"] == NAME
    return Answer(True, default, _path(runtime.get("path")))


def _of_status(found: dict[str, Any]) -> Answer:
    """Return what CRI's Status says; its keys are Go's, or TOML's, by the version."""
    runtimes = found.get("runtimes") or {}
    handler = runtimes.get(NAME) or {}
    options = handler.get("options") or {}
    default = found.get("defaultRuntimeName", found.get(containerd.DEFAULT)) == NAME
    return Answer(bool(handler), default, _path(options.get("BinaryName")))


def _younger_than_files(place: Place) -> Answer:
    written = of_files(place)
    if written.known is False:
        return written
    main = (place.main or imports.MAIN).resolve()
    running = [
        process
        for process in processes.of_program("containerd")
        if Path(process.value("--config", "-c") or imports.MAIN).resolve() == main
    ]
    if not running:
        return Answer(None, why=f"{place.owner or 'containerd'} does not run")
    files = [path for path in (place.path, main) if path.exists()]
    changed = max((path.stat().st_mtime for path in files), default=0.0)
    return Answer(False) if running[0].started < changed else written


def of_files(place: Place) -> Answer:
    """Return what a containerd that starts now would know.

    `known` is False, with the reason in `why`, where it would not start or leaves the handler out.
    """
    if place.owner:
        return _of_generated(place)
    words = ("containerd", "--config", str(place.main), "config", "dump")
    said = _run(*words)
    if not isinstance(said, str):
        missing = shutil.which("containerd") is None
        return Answer(None if missing else False, why=said.why)
    try:
        found = toml_text.parse(said)
    except BadConfiguration as error:
        return Answer(None, why=f"{' '.join(words)}: {error}")
    answer = _of_tree(found)
    return answer if answer.known else Answer(False, why=f"{' '.join(words)} has no such handler")


def _of_generated(place: Place) -> Answer:
    """Return what the files say that a distribution of Kubernetes made when it started last."""
    main = place.main or imports.MAIN
    try:
        files = imports.read(Path("/"), main)
    except EngineError as error:
        return Answer(None, why=str(error))
    answer = _of_tree(imports.merged(list(files.values()), deep=True))
    # What is not in them yet comes with the next start.
    return answer if answer.known else Answer(None, why=f"{place.owner} has not made {main} anew")


def _of_tree(found: toml_text.Tree) -> Answer:
    launcher = containerd.launcher_in(found)
    default = containerd.section_of(found).get(containerd.DEFAULT) == NAME
    return Answer(launcher is not None, default, launcher)


def _run(*command: str) -> str | Answer:
    """Return what `command` prints, or an answer that says why there is none."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False
        )
    except FileNotFoundError:
        return Answer(None, why=f"there is no {command[0]} to ask")
    except (OSError, subprocess.TimeoutExpired) as error:
        return Answer(None, why=f"{' '.join(command)}: {error}")
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        reason = lines[-1] if lines else f"exit status {done.returncode}"
        fix = "; use sudo" if "permission denied" in reason.lower() else ""
        return Answer(None, why=f"{' '.join(command)}: {reason}{fix}")
    return done.stdout


def _path(value: object) -> Path | None:
    return Path(value) if isinstance(value, str) and value else None
