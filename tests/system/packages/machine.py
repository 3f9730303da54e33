# SPDX-License-Identifier: Apache-2.0
"""A bare Debian on which packages are installed, used and removed; nothing outlives the test."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from packages import deb
from packages.wheel import up_to_date
from packages.workspace import Workspace

from gpushare.verify.runners import ProbeTenant
from tests.stack.booted import Booted
from tests.stack.distribution import BUILD, Distribution, DistributionRoot
from tests.stack.program import ServiceProcess, find

FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
NEXT = "0.1.99"
MIB = 1 << 20
BOOTED = (13,)
OTHERS = (
    "/tmp",
    "/var/tmp",
    "/var/log",
    "/var/cache",
    "/var/lib/apt",
    "/var/lib/dpkg",
    "/var/lib/systemd",
    "/usr/share/python3/debpython/__pycache__",  # Debian's own tools write it when they run
)
PROBE = "/usr/local/lib/gpushare/current/lib/gpushare-probe"


class OwnProcesses(DistributionRoot):
    """A distribution that sees its own processes only, and ends with the first of them."""

    def __init__(self, distribution: Distribution, folder: Path) -> None:
        super().__init__(distribution, folder)
        listed = ["pgrep", "--parent", str(self.first.process.pid)]
        self.pid = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.strip()

    @staticmethod
    def _starting(unshared: list[str], folder: Path) -> list[str]:  # noqa: ARG004 - `Booted` does
        apart = [find("unshare"), "--mount", "--pid", "--fork", "--kill-child"]
        return [*apart, *unshared, "sleep", "infinity"]

    @property
    def namespace(self) -> Path:
        return Path(f"/proc/{self.pid}/ns/mnt")

    def argv(self, program: str, *words: str) -> list[str]:
        entered = super().argv(program, *words)
        return [entered[0], "--target", self.pid, "--pid", *entered[1:]]

    def close(self) -> None:
        self.first.process.kill()
        self.first.process.wait()


class BareMachine:
    """A Debian without engines. It sees a folder of this machine, by the same path.

    systemd runs on the releases whose systemd boots here.
    """

    def __init__(self, release: int, folder: Path) -> None:
        name = f"bare{release}"
        # Not in /tmp, on which systemd has units of its own; also the name of a cgroup.
        self.folder = folder
        self.folder.mkdir(mode=0o755)
        self.is_booted = release in BOOTED
        kind = Booted if self.is_booted else OwnProcesses
        self.root = kind(Distribution(name, BUILD / name, FOLDERS), self.folder)

    def __enter__(self) -> BareMachine:
        return self

    def __exit__(self, *_: object) -> None:
        self.root.close()

    def sees(self, package: Path) -> Path:
        """Copy a package to where the machine sees it, and return the path."""
        return Path(shutil.copy(package, self.folder))

    def argv(self, *command: str) -> list[str]:
        """Return the command line that runs a command on the machine."""
        settings = (f"PATH={':'.join(FOLDERS)}", "HOME=/root", "LC_ALL=C.UTF-8")
        # Nothing of this machine's environment: ./dev sets where Python writes its cache.
        started = ("/usr/bin/env", "--ignore-environment", *settings)
        return self.root.argv(*started, "DEBIAN_FRONTEND=noninteractive", *command)

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command on the machine, without a terminal."""
        done = subprocess.run(
            self.argv(*command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        if check:
            assert done.returncode == 0, f"{command}: {done.stdout}"
        return done

    def write(self, path: str, text: str) -> None:
        """Write a file of the machine."""
        script = 'mkdir -p "${0%/*}" && printf %s "$1" >"$0"'
        self.run("sh", "-c", script, path, text)

    def apt(self, *words: str, check: bool = True) -> str:
        """Run apt-get. Dependencies are there, so it downloads nothing."""
        return self.run("apt-get", "--yes", *words, check=check).stdout

    def files(self) -> set[str]:
        """Return every path that is not dpkg's, apt's, systemd's or the kernel's own."""
        left_out = " ".join(f"! -path '{folder}/*'" for folder in OTHERS)
        script = f"find / -xdev {left_out} ! -name '*.cache'"
        return set(self.run("sh", "-c", script).stdout.splitlines())

    @property
    def daemon(self) -> str:
        """The program of gpushared."""
        return "/usr/sbin/gpushared"

    @contextmanager
    def gpushared(self) -> Iterator[None]:
        """The daemon, until it has ended; systemd's needs nothing."""
        if self.is_booted:
            yield
            return
        log = self.folder / "gpushared.log"
        daemon = ServiceProcess(self.argv(self.daemon), log)
        daemon.wait_until(lambda: self.run("gpushare", "ls", check=False).returncode == 0)
        try:
            yield
        finally:
            daemon.process.terminate()
            daemon.process.wait()

    def serves_through(self, upgrade: Callable[[], str], remove: Callable[[], str]) -> None:
        """Have a tenant run on while a package is upgraded to NEXT, and keep that from removal."""
        self.run("gpushare", "verify", "--memory", "--runtime", "host")
        with self.tenant("2GiB") as tenant:
            assert tenant.ask(f"alloc {64 * MIB}")["code"] == 0
            assert "nothing is started yet" not in upgrade()
            assert tenant.ask(f"alloc {64 * MIB}")["code"] == 0
            assert f"gpushare {NEXT}" in self.run("gpushare", "--version").stdout
            current = self.run("readlink", "/usr/local/lib/gpushare/current").stdout
            assert current.startswith(NEXT)
            assert "train" in self.run("gpushare", "ps").stdout
            assert "train" in remove()
            assert tenant.ask("info")["total"] == 2 << 30

    def tenant(self, memory: str) -> ProbeTenant:
        """Return a program under `gpushare run` that answers questions."""
        command = ("gpushare", "run", "--name", "train", "--memory", memory, "--", PROBE)
        found = ProbeTenant("train", self.argv(*command))
        found.start()
        return found


def next_version(workspace: Workspace, folder: Path, release: deb.DebianRelease) -> Path:
    """Return the package of a version that is newer in every file that has a version."""
    newer, wheel = next_source(workspace, folder)
    return deb.make_release(newer, release, wheel).path


def next_source(workspace: Workspace, folder: Path) -> tuple[Workspace, Path]:
    """Return a source tree of the version NEXT in `folder`, and its wheel."""
    root, build = folder / "source", folder / "build"
    root.mkdir(parents=True)
    for path in workspace.root.iterdir():
        (root / path.name).symlink_to(path)
    (root / "gpushare").unlink()
    (root / "gpushare").mkdir()
    (root / "gpushare/__init__.py").write_text(f'__version__ = "{NEXT}"\n')
    (build / "dist").mkdir(parents=True)
    (build / "cache").symlink_to(workspace.cache)
    own = up_to_date(workspace, deb.MACHINE)
    wheel = build / own.name
    with zipfile.ZipFile(own) as old, zipfile.ZipFile(wheel, "w") as new:
        for entry in old.infolist():
            content = old.read(entry)
            if entry.filename == "gpushare/__init__.py":
                content = content.replace(workspace.version.encode(), NEXT.encode())
            new.writestr(entry, content)
    return replace(workspace, root=root, build=build), wheel
