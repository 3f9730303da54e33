# SPDX-License-Identifier: Apache-2.0
"""Puts the pieces together and takes them apart in the opposite order."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import yaml

from gpushare import simulator
from gpushare.client import Client, DaemonUnreachable
from gpushare.install import Installation, install
from gpushare.simulator import device_file
from gpushare.verify.runners import Containerd, Docker, HostRunner
from tests import leftovers

from .booted import Booted
from .distribution import Cgroups, Distribution, DistributionRoot
from .program import Missing, ServiceProcess, find

#: The engines' own clients, as a user of the distribution types them.
CLIENTS = ("docker", "docker-compose", "ctr", "podman")


class Stack:
    """A simulated card (or the CDI spec of a real one), a daemon, and engines as asked for.

    `driver` is the simulated driver's version, where it is not the profile's; `time_scale` is how
    often the card's durations are multiplied. With a
    `distribution` the engines and the containers run in its `place`, which sees `cgroups` as said;
    without, on this machine as it is. A place that is `booted` has systemd, and
    the `host_paths` of this machine. `runtime` is the low-level runtime beneath the launcher.

    `root` holds everything; `env` is what a shell needs to talk to it: its PATH has the clients of
    the distribution.
    """

    def __init__(
        self,
        *,
        profile: str = "h200",
        cards: int = 1,
        driver: str | None = None,
        time_scale: float = 1,
        cdi: Path | None = None,
        distribution: Distribution | None = None,
        cgroups: Cgroups = "machine",
        runtime: str = "runc",
        booted: bool = False,
        host_paths: Sequence[Path] = (),
    ) -> None:
        # Also a containerd namespace and a cgroup, hence no underscore.
        self.root = leftovers.note(Path(f"/var/tmp/gpushare-{secrets.token_hex(4)}"))
        self.root.mkdir(mode=0o755)
        self.cgroup = self.root.name
        #: What was started, by name: also what has ended since.
        self.programs: list[tuple[str, ServiceProcess]] = []
        self._exit = ExitStack()
        self._traces = leftovers.Traces()
        self._exit.callback(self._remove)
        self.place: DistributionRoot | None = None
        try:
            if distribution is not None:
                kind = Booted if booted else DistributionRoot
                self.place = kind(distribution, self.root, cgroups, host_paths)
                self._exit.callback(self.place.close)
                self.programs.append(("place", self.place.first))
            self.runtime = Path(distribution.find(runtime) if distribution else find(runtime))
            self.socket = self.root / "run" / "control.sock"
            self.env = {
                "GPUSHARE_SOCKET": str(self.socket),
                "CONTAINERD_NAMESPACE": self.cgroup,
                "CONTAINERD_ADDRESS": str(self.root / "containerd.sock"),
                "DOCKER_HOST": f"unix://{self.root}/docker.sock",
            }
            self._put_clients_on_path()
            self.cdi = cdi or self._simulate(profile, cards, driver, time_scale)
            self.installation: Installation = install(
                self.root / "lib", runtime=self.runtime, socket=self.socket
            )
            self.config = self._configure()
        except BaseException:
            self.close()
            raise
        self.daemon: ServiceProcess | None = None

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_serving(self) -> bool:
        """Whether its gpushared runs."""
        return self.daemon is not None and self.daemon.process.poll() is None

    @property
    def client(self) -> Client:
        """A client of its gpushared, with the queue."""
        return Client(self.socket)

    @property
    def cli(self) -> list[str]:
        """The `gpushare` command of this environment."""
        return [str(Path(sys.executable).parent / "gpushare")]

    @property
    def gpushared(self) -> list[str]:
        return [
            str(Path(sys.executable).parent / "gpushared"),
            "--config",
            str(self.config),
        ]

    def argv(self, program: str, *words: str) -> list[str]:
        """Return the command line that runs a program where the engines run."""
        if self.place is not None:
            return self.place.argv(program, *words)
        return [program if program.startswith("/") else find(program), *words]

    def start_daemon(self, wrapper: tuple[str, ...] = ()) -> ServiceProcess:
        """Start gpushared, under `wrapper` (say, unshare) where one is given."""
        beside = self.place.beside() if isinstance(self.place, Booted) else []
        before = [*beside, *wrapper]
        self.daemon = self.start("gpushared", [*before, *self.gpushared], forked=not before)
        self.daemon.wait_until(lambda: _serves(self.socket))
        return self.daemon

    def configure(self, **sections: Any) -> None:
        """Set sections of gpushare.yaml (None: remove one); a daemon that runs reads it again."""
        found = {**yaml.safe_load(self.config.read_text()), **sections}
        kept = {name: section for name, section in found.items() if section is not None}
        self.config.write_text(yaml.safe_dump(kept))
        if self.is_serving:
            self.client.reload()

    def end_daemon(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the daemon, by default as the out-of-memory killer does."""
        assert self.daemon is not None
        self.daemon.process.send_signal(number)
        self.daemon.process.wait()

    def gpushare(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a `gpushare` command to its end."""
        return subprocess.run(
            [*self.cli, *words],
            check=check,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.environment,
        )

    def shown(self, *words: str) -> Any:
        """Return what a `gpushare` command prints with --json."""
        return json.loads(self.gpushare(*words, "--json").stdout)

    def events(self) -> list[dict[str, Any]]:
        """Return the lines of the daemon's log."""
        lines = (self.root / "gpushared.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def start_containerd(self) -> Containerd:
        address = self.root / "containerd.sock"
        config = self.root / "containerd.toml"
        config.write_text(
            "version = 2\n"
            f'root = "{self.root}/containerd"\n'
            f'state = "{self.root}/containerd-state"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
            f'[grpc]\naddress = "{address}"\n'
            f'[plugins."io.containerd.internal.v1.opt"]\npath = "{self.root}/opt"\n'
            f'[ttrpc]\naddress = "{address}.ttrpc"\n'
        )
        program = self.start("containerd", self.argv("containerd", "--config", str(config)))
        program.wait_until(lambda: _answers(["ctr", "version"], self.environment))
        return Containerd(self.installation.launcher, env=dict(self.env))

    def start_docker(self, *flags: str) -> Docker:
        """Start dockerd on the stack's containerd, with the runtime registered as a user would.

        `flags` are more of dockerd's own. In a booted place systemd makes the cgroups.
        """
        config = self.root / "daemon.json"
        self._register(config)
        cgroups = [f"--cgroup-parent=/{self.cgroup}", "--exec-opt=native.cgroupdriver=cgroupfs"]
        if isinstance(self.place, Booted):
            cgroups = ["--exec-opt=native.cgroupdriver=systemd"]
        argv = [
            *self.argv("dockerd", "--config-file", str(config)),
            "--host",
            self.env["DOCKER_HOST"],
            "--data-root",
            f"{self.root}/docker",
            "--exec-root",
            f"{self.root}/docker-run",
            "--pidfile",
            f"{self.root}/docker.pid",
            "--containerd",
            f"{self.root}/containerd.sock",
            "--containerd-namespace",
            self.cgroup,
            "--bridge=none",
            *cgroups,
            "--iptables=false",
            "--ip6tables=false",
            "--ip-forward=false",
            "--userland-proxy=false",
            *flags,
        ]
        program = self.start("dockerd", argv)
        program.wait_until(lambda: _answers(["docker", "version"], self.environment))
        return Docker(env=dict(self.env))

    def host(self) -> HostRunner:
        """`gpushare run`, without an engine."""
        return HostRunner(self.cli, self.installation.probe, env=dict(self.env))

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.env}

    def close(self) -> None:
        self._exit.close()

    def _put_clients_on_path(self) -> None:
        if self.place is None:
            return
        folder = self.root / "clients"
        folder.mkdir()
        for client in CLIENTS:
            with suppress(Missing):
                self.place.wrap(client, folder)
        self.env["PATH"] = f"{folder}:{os.environ['PATH']}"

    def _simulate(self, profile: str, cards: int, driver: str | None, time_scale: float) -> Path:
        folder = self.root / "driver"
        cuda = None if driver is None else "13.5"
        libraries = device_file.libraries()
        if self.place is not None:
            # What runc mounts must have the same name in there.
            libraries = shutil.copytree(libraries, self.root / "simulator")
        created = simulator.create(
            folder,
            profile,
            cards=cards,
            driver_version=driver,
            time_scale=time_scale,
            cuda_version=cuda,
            folder=libraries,
        )
        self.env["GPUSHARE_SIM_DEVICE"] = str(created.device)
        return Path(created.cdi)

    def _configure(self) -> Path:
        config = self.root / "gpushare.yaml"
        config.write_text(
            yaml.safe_dump(
                {
                    "run_dir": str(self.root / "run"),
                    "state_dir": str(self.root / "state"),
                    "library_dir": str(self.installation.libraries),
                    "driver": {"cdi_spec": str(self.cdi)},
                    # The engines' namespace is this process's; pid 1 may be another machine's here.
                    "runtime_mount_namespace": str(
                        self.place.mount_namespace if self.place else f"/proc/{os.getpid()}/ns/mnt"
                    ),
                    "engines": {"sockets": [f"{self.root}/docker.sock"]},
                }
            )
        )
        return config

    def _register(self, config: Path) -> None:
        subprocess.run(
            [
                *self.cli,
                "runtime",
                "configure",
                "--runtime",
                "docker",
                "--config",
                str(config),
                "--launcher",
                str(self.installation.launcher),
            ],
            check=True,
            capture_output=True,
            env=self.environment,
        )

    def start(self, name: str, argv: list[str], *, forked: bool = False) -> ServiceProcess:
        """Start a program that ends with the stack; its output is in `root`/`name`.log."""
        program = ServiceProcess(argv, self.root / f"{name}.log", self.environment, forked=forked)
        self.programs.append((name, program))
        self._exit.callback(program.stop)
        return program

    def _remove(self) -> None:
        for pid in _processes_of(self.root):
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(pid, signal.SIGKILL)
        leftovers.remove(self.root, self.cgroup)
        self._traces.remove(self.cgroup)


_LEFT = (b"containerd-shim", b"gpushare-scheduler", b"gpushare.simulator.mps")


def _serves(path: Path) -> bool:
    """Whether gpushared is ready: it listens before, and asks early clients to wait."""
    try:
        Client(path).status()
    except DaemonUnreachable:
        return False
    return True


def _answers(argv: list[str], env: dict[str, str]) -> bool:
    try:
        done = subprocess.run(argv, check=False, env=env, capture_output=True, timeout=10)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _processes_of(root: Path) -> list[int]:
    """Return what this stack's daemons left running: it is named in their command lines.

    Engines leave shims, gpushared the scheduler of tenants that run, and MPS control daemons, which
    have it in their environment.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                argv = (entry / "cmdline").read_bytes()
                if b"gpushare.simulator.mps" in argv:
                    argv += (entry / "environ").read_bytes()
            except OSError:
                continue  # ended meanwhile
            ours = any(name in argv for name in _LEFT)
            if ours and os.fsencode(root) in argv:
                found.append(int(entry.name))
    return found
