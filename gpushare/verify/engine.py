# SPDX-License-Identifier: Apache-2.0
"""The ways in: how each engine starts, kills and removes a tenant, as the command a user types."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from gpushare.errors import UserError

from . import image
from .tenant import Tenant

#: What ctr and docker say where nobody listens, or the socket is not for this user.
_UNANSWERED: Final = re.compile(r"failed to dial|[Cc]annot connect to the Docker daemon|dial unix")


class EngineFailed(UserError):
    """An engine's command failed outside of any claim; carries the command and what it said."""


class Engine(Protocol):
    """`env` is what its commands need besides this process's environment."""

    name: str
    env: dict[str, str]

    def prepare(self, probe: Path) -> None:
        """Load the image; nothing of it is left after `finish`, unless it was there before."""
        ...

    def run(self, name: str, quota: Mapping[str, str], *command: str) -> list[str]:
        """Return the command that starts the probe as tenant `name` under `quota`."""
        ...

    def kill(self, name: str) -> list[str]:
        """Return the command that kills tenant `name` with SIGKILL."""
        ...

    def remove(self, name: str) -> None:
        """Remove what a killed tenant left with the engine."""
        ...

    def finish(self) -> None:
        """Take the image away again."""
        ...


def environment(engine: Engine) -> dict[str, str]:
    """Return the environment in which the engine's commands run."""
    return {**os.environ, **engine.env}


def spawn(engine: Engine, name: str, quota: Mapping[str, str], *command: str) -> Tenant:
    """Start the probe as tenant `name` and return the conversation with it."""
    return Tenant(name, engine.run(name, quota, *command), environment(engine))


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
            *("docker", "run", "--rm", "-i", "--network", "none", "--name", name),
            *(f"--runtime={self.runtime}", *_docker_env(quota)),
            *("gpushare-probe", *command),
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
    """containerd's own client, the launcher given as its runc binary.

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
            *("ctr", "run", "--rm", "--runc-binary", str(self.launcher)),
            *(*_ctr_env(quota), f"docker.io/library/{image.TAG}", name),
            *(image.PROGRAM, *command),
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
class Host:
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
        return [*self.cli, "run", "--name", name, *flags, "--", str(self.probe), *command]

    def kill(self, name: str) -> list[str]:
        """Return the command that kills tenant `name`."""
        found = subprocess.run(
            [*self.cli, "--json", "inspect", name],
            check=True,
            capture_output=True,
            text=True,
            env=environment(self),
        )
        return ["kill", "-KILL", str(json.loads(found.stdout)["pid"])]

    def remove(self, name: str) -> None:
        """A host process leaves nothing with an engine."""

    def finish(self) -> None:
        """There is no image."""


def _docker_env(quota: Mapping[str, str]) -> list[str]:
    return [word for key, value in quota.items() for word in ("-e", f"{_variable(key)}={value}")]


def _ctr_env(quota: Mapping[str, str]) -> list[str]:
    return [word for key, value in quota.items() for word in ("--env", f"{_variable(key)}={value}")]


def _variable(key: str) -> str:
    return "GPUSHARE_" + key.upper().replace("-", "_")


def _quiet(
    argv: list[str], env: Mapping[str, str], data: bytes | None = None, check: bool = True
) -> bytes:
    """Run an engine's command and return what it printed; EngineFailed unless not to `check`."""
    try:
        done = subprocess.run(
            argv, check=False, input=data, capture_output=True, env={**os.environ, **env}
        )
    except FileNotFoundError:
        raise EngineFailed(f"there is no program {argv[0]}; install it, or see --runtime") from None
    if check and done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        if _UNANSWERED.search(said):
            raise EngineFailed(f"{argv[0]} reaches no daemon ({said}); start it, or see --runtime")
        raise EngineFailed(f"{' '.join(argv)} failed: {said}")
    return done.stdout
