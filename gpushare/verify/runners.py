# SPDX-License-Identifier: Apache-2.0
"""How each engine starts, kills and removes a tenant, as the command that a user types."""

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
from gpushare.verify import image
from gpushare.verify.probe_tenant import ProbeTenant

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
            *("docker", "run", "--rm", "-i", "--network", "none", "--name", name),
            *(f"--runtime={self.runtime}", *_docker_env(quota)),
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
