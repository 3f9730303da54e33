# SPDX-License-Identifier: Apache-2.0
"""A running probe, and how each engine starts, kills and removes it, as a user types the command.

A probe reads commands on stdin and prints results as JSON lines.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any, Final, Protocol

from gpushare.errors import UserError
from gpushare.host.mounts import WITH_OWN_SHARED_MEMORY
from gpushare.verify import image

ANSWER_SECONDS = 60.0  # the first container start of an engine on a slow disk


class ProbeFailed(RuntimeError):
    """The probe exited or sent no result in time; carries its stderr."""


class ProbeTenant:
    """A process `argv` that takes commands on stdin and prints results on stdout."""

    def __init__(
        self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.argv = list(argv)
        self.process = subprocess.Popen(
            self.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=None if env is None else dict(env),
        )
        self._lines: Queue[str | None] = Queue()
        self._errors: list[str] = []
        self._readers = [
            Thread(target=self._read_answers, daemon=True),
            Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> ProbeTenant:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> dict[str, Any]:
        """Return the first result of the probe: whether cuInit found a card."""
        return self.answer("driver")

    def ask(self, command: str) -> dict[str, Any]:
        """Send `command`; return its result."""
        self.tell(command)
        return self.answer(command.split(maxsplit=1)[0])

    def tell(self, command: str) -> None:
        """Send `command` without reading its result."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise ProbeFailed(f"{self.name}: {error}; {self.errors}") from error

    def answer(self, event: str) -> dict[str, Any]:
        """Return the next result, which must be for `event`."""
        try:
            line = self._lines.get(timeout=ANSWER_SECONDS)
        except Empty:
            line = None
        if line is None:
            self._readers[1].join(timeout=5)
            raise ProbeFailed(f"{self.name} did not respond to {event}: {self.errors}")
        try:
            answer_read = json.loads(line)
        except ValueError as error:
            raise ProbeFailed(f"{self.name} sent {line!r} for {event}") from error
        if not isinstance(answer_read, dict) or answer_read.get("event") != event:
            raise ProbeFailed(f"{self.name} sent {answer_read} for {event}")
        return answer_read

    @property
    def errors(self) -> str:
        """The text that the probe and its engine have written to stderr, on one line."""
        lines = (line.strip() for line in self._errors)
        return " | ".join(line for line in lines if line) or "nothing on stderr"

    def wait(self, seconds: float = ANSWER_SECONDS) -> int:
        """Wait for the command to exit; return its status."""
        status = self.process.wait(timeout=seconds)
        self._readers[1].join(timeout=5)
        return status

    def close(self) -> None:
        """Close stdin, at which the probe exits, and wait for that."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            with suppress(BrokenPipeError):  # it has exited already
                self.process.stdin.close()
        try:
            self.process.wait(timeout=ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for reader, stream in zip(
            self._readers, (self.process.stdout, self.process.stderr), strict=True
        ):
            reader.join()
            if stream is not None:
                stream.close()

    def _read_answers(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(self.process.stderr)


#: Messages of ctr and docker if no daemon listens, or this user cannot access its socket.
_UNREACHABLE: Final = re.compile(r"failed to dial|[Cc]annot connect to the Docker daemon|dial unix")


class EngineFailed(UserError):
    """A command of an engine failed outside any check; carries the command and its output."""


class TenantRunner(Protocol):
    """`env` has the variables that the commands need in addition to this process's environment."""

    name: str
    env: dict[str, str]

    def prepare(self, probe: Path) -> None:
        """Load the image. `finish` removes it, unless it existed before."""
        ...

    def run(self, name: str, quota: Mapping[str, str], *command: str) -> list[str]:
        """Return the command that starts the probe as tenant `name` under `quota`.

        `command` are options and commands of the probe.
        """
        ...

    def kill(self, name: str) -> list[str]:
        """Return the command that kills tenant `name` with SIGKILL."""
        ...

    def remove(self, name: str) -> None:
        """Remove what a killed tenant left with the engine."""
        ...

    def finish(self) -> None:
        """Remove the image."""
        ...


def environment(engine: TenantRunner) -> dict[str, str]:
    """Return the environment in which the engine's commands run."""
    return {**os.environ, **engine.env}


def spawn(engine: TenantRunner, name: str, quota: Mapping[str, str], *command: str) -> ProbeTenant:
    """Start the probe as tenant `name` and return it."""
    return ProbeTenant(name, engine.run(name, quota, *command), environment(engine))


@dataclass
class Docker:
    """The docker client, `env` naming the daemon (DOCKER_HOST) and ours (GPUSHARE_SOCKET)."""

    runtime: str = "gpushare"
    env: dict[str, str] = field(default_factory=dict)
    name: str = "docker"
    had_image: bool = False

    def prepare(self, probe: Path) -> None:
        """Load the image."""
        listed = ["docker", "image", "ls", "--quiet", image.TAG]
        self.had_image = bool(_quiet(listed, self.env))
        _quiet(["docker", "load"], self.env, image.build(probe))

    def run(self, name: str, quota: Mapping[str, str], *command: str) -> list[str]:
        """Return the command that starts tenant `name`."""
        return [
            "docker",
            "run",
            "--rm",
            "-i",
            "--network",
            "none",
            "--name",
            name,
            f"--runtime={self.runtime}",
            *_env_options(quota),
            "gpushare-probe",
            *((image.PROGRAM, *command) if command else ()),
        ]

    def kill(self, name: str) -> list[str]:
        """Return the command that kills tenant `name`."""
        return ["docker", "kill", "--signal", "KILL", name]

    def remove(self, name: str) -> None:
        """Remove what a killed tenant left behind."""
        _quiet(["docker", "rm", "--force", name], self.env, check=False)

    def finish(self) -> None:
        """Remove the image."""
        if not self.had_image:
            _quiet(["docker", "image", "rm", "--force", image.TAG], self.env, check=False)


@dataclass
class Containerd:
    """containerd's own client, with the launcher as its runc binary.

    `env` names the daemon and the namespace (CONTAINERD_ADDRESS, CONTAINERD_NAMESPACE).
    """

    launcher: Path
    env: dict[str, str] = field(default_factory=dict)
    name: str = "containerd"
    had_image: bool = False

    def prepare(self, probe: Path) -> None:
        """Load the image."""
        listed = ["ctr", "images", "ls", "--quiet", f"name==docker.io/library/{image.TAG}"]
        self.had_image = bool(_quiet(listed, self.env))
        _quiet(["ctr", "images", "import", "-"], self.env, image.build(probe))

    def run(self, name: str, quota: Mapping[str, str], *command: str) -> list[str]:
        """Return the command that starts tenant `name`."""
        return [
            "ctr",
            "run",
            "--rm",
            "--runc-binary",
            str(self.launcher),
            *_env_options(quota),
            f"docker.io/library/{image.TAG}",
            name,
            image.PROGRAM,
            *command,
        ]

    def kill(self, name: str) -> list[str]:
        """Return the command that kills tenant `name`."""
        return ["ctr", "tasks", "kill", "--signal", "SIGKILL", name]

    def remove(self, name: str) -> None:
        """Remove what a killed tenant left behind."""
        _quiet(["ctr", "tasks", "rm", "--force", name], self.env, check=False)
        _quiet(["ctr", "containers", "rm", name], self.env, check=False)

    def finish(self) -> None:
        """Remove the image."""
        removed = f"docker.io/library/{image.TAG}"
        if not self.had_image:
            _quiet(["ctr", "images", "rm", "--sync", removed], self.env, check=False)


@dataclass
class HostRunner:
    """No container: `gpushare run` on this host."""

    cli: list[str]
    probe: Path
    env: dict[str, str] = field(default_factory=dict)
    name: str = "host"

    def prepare(self, probe: Path) -> None:
        """Load the image."""
        self.probe = probe

    def run(self, name: str, quota: Mapping[str, str], *command: str) -> list[str]:
        """Return the command that starts tenant `name`."""
        flags = [word for key, value in quota.items() for word in (f"--{key}", value)]
        own = WITH_OWN_SHARED_MEMORY if os.geteuid() == 0 else ()
        return [*self.cli, "run", "--name", name, *flags, "--", *own, str(self.probe), *command]

    def kill(self, name: str) -> list[str]:
        """Return the command that kills tenant `name`."""
        inspected = subprocess.run(
            [*self.cli, "--json", "inspect", name],
            check=True,
            capture_output=True,
            text=True,
            env=environment(self),
        )
        # The shell's own: a small machine has no program of that name.
        return ["sh", "-c", f"kill -KILL {json.loads(inspected.stdout)['pid']}"]

    def remove(self, name: str) -> None:
        """A host process leaves nothing with an engine."""

    def finish(self) -> None:
        """There is no image."""


def _env_options(quota: Mapping[str, str]) -> list[str]:
    return [word for key, value in quota.items() for word in ("--env", f"{_variable(key)}={value}")]


def _variable(key: str) -> str:
    return "GPUSHARE_" + key.upper().replace("-", "_")


def _quiet(
    argv: list[str], env: Mapping[str, str], data: bytes | None = None, check: bool = True
) -> bytes:
    """Run a command of an engine and return its output; with `check`, raise EngineFailed."""
    try:
        done = subprocess.run(
            argv, check=False, input=data, capture_output=True, env={**os.environ, **env}
        )
    except FileNotFoundError:
        raise EngineFailed(
            f"{argv[0]} is not installed. Install it, or use another --runtime."
        ) from None
    if check and done.returncode:
        output = (done.stderr or done.stdout).decode(errors="replace").strip()
        if _UNREACHABLE.search(output):
            raise EngineFailed(
                f"{argv[0]} cannot reach its daemon ({output}). Start it, or use another --runtime."
            )
        raise EngineFailed(f"{' '.join(argv)} failed: {output}")
    return done.stdout
