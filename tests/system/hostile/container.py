# SPDX-License-Identifier: Apache-2.0
"""A stack whose containers runc and crun run alike, and a container of it."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpushare.protocol.rows import TenantStatus
from gpushare.verify.runners import ProbeTenant
from tests.stack import Stack
from tests.stack.bundle import PROBE, Bundle, busybox
from tests.stack.program import ServiceProcess, find
from tests.system.low_level import LowLevelRuntime, behind_launcher
from tests.system.waiting import PATIENCE_SECONDS, wait_until

GIB = 1 << 30
#: Of what is mounted ahead of need, and nobody's yet.
AHEAD = "."
#: Reservations and bound tenants are looked at this often (seconds), so that a test need not wait.
#: A busy machine takes more than five seconds for a start now and then.
TIMING = {"bind_timeout_seconds": 15, "reconcile_interval_seconds": 0.2}
#: crun refuses a host that has cgroup v1 and v2 side by side.
_VIEW = "umount /sys/fs/cgroup/unified 2>/dev/null; echo ready; exec sleep infinity"


class RuntimeNamespace:
    """A stack in a mount namespace of its own, where either runtime works."""

    def __init__(self, stack: Stack, *, bind: str = "", **timing: float) -> None:
        self.stack = stack
        log = stack.root / "view.log"
        argv = [find("unshare"), "--mount", "sh", "-c", _VIEW]
        self._view = ServiceProcess(argv, log, stack.environment)
        self._view.wait_until(lambda: "ready" in log.read_text())
        self._inside = [find("nsenter"), f"--mount=/proc/{self._view.process.pid}/ns/mnt"]
        stack.configure(
            runtime_mount_namespace=f"/proc/{self._view.process.pid}/ns/mnt",
            timing={**TIMING, **timing},
            bind=bind or None,
        )
        self.client = stack.client
        self._runtimes: dict[str, LowLevelRuntime] = {}

    def close(self) -> None:
        self._view.stop()

    def runtime(self, name: str) -> LowLevelRuntime:
        """Return runc or crun behind the launcher."""
        if name not in self._runtimes:
            folder = self.stack.root / f"launcher-{name}"
            argv = behind_launcher(folder, [*self._inside, find(name)], self.stack.socket)
            self._runtimes[name] = LowLevelRuntime(argv, self.stack.root / f"state-{name}")
        return self._runtimes[name]

    def rows(self) -> list[TenantStatus]:
        return self.client.tenants()

    def allocated(self) -> int:
        return sum(card["allocated_bytes"] for card in self.client.cards())

    def pages(self) -> list[str]:
        """Return the keys that have a directory, wherever it is mounted."""
        names = (path.name for path in (self.stack.root / "run/tenants").iterdir())
        return sorted(name for name in names if not name.startswith(AHEAD))

    def mountinfo(self) -> list[str]:
        """Return the table of mounts where the runtime runs."""
        return Path(f"/proc/{self._view.process.pid}/mountinfo").read_text().splitlines()

    def mounts(self) -> list[str]:
        """Return the tenants' tmpfs that are mounted where the runtime runs."""
        points = [line.split()[4] for line in self.mountinfo()]
        tenants = f"{self.stack.root}/run/tenants/"
        return [
            point
            for point in points
            if point.startswith(tenants) and not point.startswith(tenants + AHEAD)
        ]

    def inside(self, path: str) -> Path:
        """Return where a path of the runtime's mount namespace can be reached from here."""
        return Path(f"/proc/{self._view.process.pid}/root{path}")

    def assert_empty(self) -> None:
        """Wait until nothing is allocated, and nothing of any tenant is left."""
        wait_until(lambda: not self.rows() and not self.pages())
        assert self.allocated() == 0
        assert self.mounts() == []

    def log_lines(self) -> list[dict[str, Any]]:
        """Return the daemon's log; every line must be one JSON object."""
        text = (self.stack.root / "gpushared.log").read_text()
        return [json.loads(line) for line in text.splitlines() if line]


@contextmanager
def no_service_manager(place: RuntimeNamespace) -> Iterator[None]:
    """Have a daemon that ends in the block be gone: no launcher waits for the next one.

    A daemon that is killed leaves its socket; one that stops takes it away.
    """
    daemon = place.stack.daemon
    assert daemon is not None
    over = threading.Event()

    def remove_socket() -> None:
        while not over.wait(0.02):
            if daemon.process.poll() is not None:
                place.stack.socket.unlink(missing_ok=True)
                return

    thread = threading.Thread(target=remove_socket)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class RuntimeContainer(Bundle):
    """A bundle that one of the two runtimes runs."""

    def __init__(
        self,
        place: RuntimeNamespace,
        runtime: str,
        *,
        quota: Mapping[str, str] | None = None,
        args: Sequence[str] = PROBE,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        super().__init__(
            place.stack,
            quota={"memory": "1GiB"} if quota is None else quota,
            files={**busybox(), **(files or {})},
            args=args,
        )
        self.place = place
        self.through = place.runtime(runtime)

    def argv(self, *words: str, runtime: str | None = None) -> list[str]:
        del runtime
        return self.through.argv(*words)

    def create(self) -> int:
        """Create without output pipes: the container's init keeps those it is given."""
        return self.through.create(self.path, self.id)

    def remove(self) -> None:
        """Delete it; on a busy machine the runtime may try before the kernel has let go of it."""

        def is_gone() -> bool:
            self.call("delete", "--force")
            return not self.through.state(self.id)

        wait_until(is_gone)

    def try_to_run(self) -> str:
        """Run it to its end, or to its refusal; return its stderr."""
        done = subprocess.run(
            self.argv("run", "--bundle", str(self.path), self.id),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env=self.stack.environment,
            timeout=PATIENCE_SECONDS,
        )
        return done.stderr.decode(errors="replace")

    def pid(self) -> int:
        return int(self.through.state(self.id)["pid"])

    def row(self) -> TenantStatus | None:
        return next((row for row in self.place.rows() if row["id"] == self.id), None)

    @contextmanager
    def started(self) -> Iterator[ProbeTenant]:
        """Run it until its probe has found the driver; it is gone after the block."""
        try:
            with self.run() as tenant:
                assert tenant.start()["code"] == 0, tenant.errors
                yield tenant
        finally:
            self.remove()
