# SPDX-License-Identifier: Apache-2.0
"""Records what gpushared does: two nodes, one as it is installed, one with a policy of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from tests import leftovers
from tests.guard import generate, masks
from tests.guard.generate import GeneratedContainer
from tests.guard.wire import ControlSocket
from tests.stack import Stack

#: What gpushare.yaml says on the second node.
POLICY: Final = {
    "system_reserved": "1GiB",
    "max_tenants": 6,
    "defaults": {"memory": "2GiB", "cores": 20, "placement": "spread"},
    "max_per_request": {"memory": "40GiB", "cores": 60, "count": 2, "policies": ["fixed-share"]},
    "trust": {"env": "reduce"},
    "dialects": {"mode": "strict", "accept": ["hami", "kai", "alibaba"], "unaccepted": "ignore"},
    "cards": {"0": {"allowed_mode": "shared"}, "1": {"allowed_mode": "exclusive"}},
    "namespaces": {
        "prod": {"dialects": {"mode": "lenient"}, "trust": {"env": "request"}},
        "dev-*": {"max_per_request": {"memory": "4GiB"}, "max_per_card": {"memory_percent": 20}},
    },
}
#: What nobody asks for happens when a node is looked at: not while it is recorded.
_SELDOM: Final = {"bind_timeout_seconds": 600, "reconcile_interval_seconds": 600}
_KEPT: Final = 16  # containers that were left stay until so many others were
_WAIT_SECONDS: Final = 30.0
_SETTLED_SECONDS: Final = 0.7
_TASKS: Final = "io.containerd.runtime.v2.task/k8s.io"
#: The keys of tenants depend on where their bundles lie.
ROOT: Final = Path("/var/tmp/gpushare-guard")


class RecordedDaemon:
    """One gpushared, and what it was seen to do."""

    def __init__(
        self, stack: Stack, settings: Mapping[str, Any], wrapper: tuple[str, ...] = ()
    ) -> None:
        self._stack = stack
        stack.configure(**settings)
        self.daemon = ControlSocket(stack.socket)
        self.names: dict[str, str] = {}  # what is drawn by chance -> what stands for it
        self._left: list[tuple[str, str]] = []
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        stack.start_daemon(wrapper)

    def close(self) -> None:
        """End the processes that stood for containers."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    # --- containers ---

    def run(self, case: GeneratedContainer) -> dict[str, Any]:
        """Make one container, do to it what the case says, and return what was seen."""
        folder = self._bundle(case)
        found = self._make(case, folder)
        reply = found["reply"]
        if reply["ok"] and found["tenant"].get("tenant", {}).get("cards"):
            key = str(reply["key"])
            found["then"] = [
                [step, self._step(step, detail, case, key, folder)] for step, detail in case.then
            ]
            while len(self._left) > _KEPT:
                self._give_back(*self._left.pop(0))
        shutil.rmtree(folder)
        return found

    def create(self, case: GeneratedContainer) -> dict[str, Any]:
        """Make one container, and nothing else."""
        return self._create(case, self._bundle(case))

    def make(self, case: GeneratedContainer) -> dict[str, Any]:
        """Make one container, and return what was seen."""
        return self._make(case, self._bundle(case))

    def _make(self, case: GeneratedContainer, folder: Path) -> dict[str, Any]:
        before = (folder / "config.json").read_bytes()
        found: dict[str, Any] = {"reply": self._create(case, folder)}
        return {**found, "spec": _spec(folder, before), "tenant": self.daemon.tenant(case.identity)}

    def _bundle(self, case: GeneratedContainer) -> Path:
        place = self._stack.root / ("tasks/" + _TASKS if case.pod else "bundles")
        folder = place / case.identity
        (folder / "rootfs/usr/lib64").mkdir(parents=True)
        if case.debian:
            (folder / "rootfs/usr/lib/x86_64-linux-gnu").mkdir(parents=True)
            (folder / "rootfs/etc").mkdir()
        (folder / "config.json").write_text(json.dumps(case.config()))
        if case.pod:
            sandbox = place / case.pod
            sandbox.mkdir(exist_ok=True)
            asked = json.dumps({"annotations": dict(case.annotations)})
            (sandbox / "config.json").write_text(asked)
        return folder

    def _create(self, case: GeneratedContainer, folder: Path) -> dict[str, Any]:
        flags = os.O_RDONLY | os.O_DIRECTORY
        fds = [os.open(folder / name, flags) for name in (".", "rootfs")]
        try:
            return self.daemon.create(case.identity, str(folder), case.marker, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _step(
        self, step: str, detail: Any, case: GeneratedContainer, key: str, folder: Path
    ) -> Any:
        name = case.identity
        if step == "leave":
            self._left.append((key, name))
            return None
        if step == "again":
            before = (folder / "config.json").read_bytes()
            again = self._create(case, folder)
            self._left.append((key, name))
            return {"reply": again, "spec": _spec(folder, before)}
        steps: dict[str, Callable[[], Any]] = {
            "release": lambda: self.daemon.release(key, name),
            "bind": lambda: self.bind(key, name),
            "twice": lambda: self.daemon.bind(key, name, os.getpid()),
            "set": lambda: self.daemon.set(name, detail),
            "over": lambda: self.daemon.set(name, {"over_quota_action": "kill"}),
            "reset": lambda: self.daemon.set(name, {"reset": "all"}),
            "why": lambda: self.daemon.why(name),
            "pause": lambda: self.daemon.pause(name, "guard"),
            "resume": lambda: self.daemon.resume(name),
            "kill": lambda: self._stop(key, name, "KILL"),
            "stop": lambda: self._stop(key, name, "TERM"),
            "exit": lambda: self.end(key, name),
        }
        return steps[step]()

    def bind(self, key: str, name: str) -> Any:
        """Start a process in a cgroup of its own, and bind a tenant to it."""
        process = subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL)
        self._processes[key] = process
        _enter_cgroup(f"{self._stack.cgroup}/{name}", process.pid)
        reply = self.daemon.bind(key, name, process.pid)
        return {"reply": reply, **self.daemon.tenant(name)}

    def _stop(self, key: str, name: str, signal_name: str) -> Any:
        self.daemon.resume(name)
        reply = self.daemon.stop(name, signal_name, 5)
        if not reply["ok"]:
            return {"reply": reply, "gone": self.end(key, name)}
        self._processes.pop(key).wait(_WAIT_SECONDS)
        # Whether its row is that of a container that has ended is a matter of luck.
        reply["tenant"] = reply["tenant"]["id"]
        return {"reply": reply, "gone": self._is_gone(name)}

    def end_if_bound(self, key: str, name: str) -> bool:
        """End a tenant's process, if it got so far."""
        return key in self._processes and self.end(key, name)

    def end(self, key: str, name: str) -> bool:
        """End a tenant's process; return whether the daemon has noticed."""
        process = self._processes.pop(key)
        process.kill()
        process.wait(_WAIT_SECONDS)
        return self._is_gone(name)

    def _give_back(self, key: str, name: str) -> None:
        if key in self._processes:
            self.end(key, name)
        else:
            self.daemon.release(key, name)

    def _is_gone(self, name: str) -> bool:
        """Wait until the daemon has noticed that a container has ended."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while time.monotonic() < deadline:
            if not self.daemon.tenant(name)["ok"]:
                return True
            time.sleep(0.002)
        return False

    def launch(self, case: GeneratedContainer) -> dict[str, Any]:
        """Make a container by the launcher, with a low-level runtime that does nothing."""
        folder = self._bundle(case)
        before = (folder / "config.json").read_bytes()
        launcher = self._stack.root / "launcher" / "gpushare-runtime"
        if not launcher.exists():
            launcher.parent.mkdir()
            shutil.copy(self._stack.installation.launcher, launcher)
            conf = f"runtime = /bin/true\nsocket = {self._stack.socket}\n"
            launcher.with_name("gpushare-runtime.conf").write_text(conf)
        words = ("create", "--bundle", str(folder), case.identity)
        done = subprocess.run([launcher, *words], check=False, capture_output=True, text=True)
        found = {"status": done.returncode, "error": done.stderr, "spec": _spec(folder, before)}
        # The runtime has ended, and with it what it reserved: found out by the daemon itself.
        deadline = time.monotonic() + _WAIT_SECONDS
        while time.monotonic() < deadline:
            if not self.daemon.tenant(case.identity).get("tenant", {}).get("cards"):
                break
            time.sleep(0.005)
        shutil.rmtree(folder)
        return found

    def open(self, name: str, quota: Mapping[str, str], *, rootless: bool) -> dict[str, Any]:
        """Do as `gpushare run` does, and give it back."""
        reply = self.daemon.open(quota, name, os.getpid(), rootless=rootless)
        if not reply["ok"]:
            return {"reply": reply}
        key, identity = str(reply["key"]), str(reply["id"])
        self.names |= {key: f"<key of {name}>", identity: f"<id of {name}>"}
        found = {"reply": reply, "tenant": self.daemon.tenant(identity)}
        self.daemon.release(key, identity)
        return found

    # --- the node ---

    def policies(self) -> list[Any]:
        """Change the cards as an operator does, and back; one of them stays cordoned."""
        ask = self.daemon
        return [
            ask.card_policy("2", "fixed-share"),
            ask.card_policy("2", None),
            ask.card_policy("3", "best-effort"),
            ask.card_policy("9", "best-effort"),
            ask.card_policy("0", "fair"),
            ask.cordon("1", "maintenance"),
            ask.cordon("2", "maintenance"),
            ask.uncordon("2"),
            ask.cordon("17", "none such"),
            ask.reload(),
        ]

    def restart(self, number: int) -> dict[str, Any]:
        """End the daemon by a signal, start it again, and return what it still knows."""
        before = self.state()
        self._stack.end_daemon(signal.Signals(number))
        self._stack.start_daemon()
        return {"before": before, "after": self.state()}

    def state(self) -> dict[str, Any]:
        """Return all that the socket shows of tenants and cards."""
        tenants = sorted(self.daemon.tenants(), key=lambda row: (str(row["name"]), str(row["id"])))
        return {"tenants": tenants, "cards": self.daemon.cards()}

    def settled(self) -> dict[str, Any]:
        """Return the same once the same tenants stay: one that has ended is released later."""
        found, since = self.state(), time.monotonic()
        while time.monotonic() - since < _SETTLED_SECONDS:
            time.sleep(0.1)
            before, found = found, self.state()
            if [row["id"] for row in found["tenants"]] != [row["id"] for row in before["tenants"]]:
                since = time.monotonic()
        return found

    def about(self) -> dict[str, Any]:
        """Return what the daemon says about itself, and its metrics."""
        return {"status": self.daemon.status(), "metrics": self.daemon.metrics()}

    def events_by_tenant(self) -> dict[str, Any]:
        """Return the lines of the log."""
        lines = (self._stack.root / "gpushared.log").read_text(errors="replace").splitlines()
        found = [json.loads(line) if line.startswith("{") else {"event": line} for line in lines]
        return _by_tenant([one for one in found if isinstance(one, dict)], self.names)


def _spec(folder: Path, before: bytes) -> Any:
    after = (folder / "config.json").read_bytes()
    return "unchanged" if after == before else json.loads(after)


def record(
    name: str, settings: Mapping[str, Any], first: int, count: int, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Record one node, with `count` of the generated cases and all of the corpus."""
    with stack_of(4) as stack:
        node = RecordedDaemon(stack, {"timing": _SELDOM, **settings})
        try:
            found = _recorded(node, first, count, lambda what: tell(f"{name}: {what}"))
            found["events"] = node.events_by_tenant()
        finally:
            node.close()
        recorded: dict[str, Any] = masks.of_stack(found, stack, node.names)
        return recorded


def stack_of(cards: int) -> Stack:
    """Return a stack at the one place where a recording has it."""
    leftovers.remove(ROOT, ROOT.name)  # of a recording that was killed
    with patch("tests.stack.stack.secrets.token_hex", lambda _: ROOT.name.partition("-")[2]):
        return Stack(cards=cards)


def _recorded(
    node: RecordedDaemon, first: int, count: int, tell: Callable[[str], None]
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "cases": {},
        "corpus": {},
        "launched": {},
        "restarts": [],
        "states": [],
    }
    for part in range(4):
        part_first, part_count = first + part * count // 4, count // 4
        for case in generate.cases(part_first, part_count):
            found["cases"][case.name] = node.run(case)
        found["states"].append(node.settled())
        if part == 0:
            found["policies"] = node.policies()
        else:
            number = signal.SIGKILL if part == 2 else signal.SIGTERM
            found["restarts"].append(node.restart(number))
        tell(f"{(part + 1) * count // 4} of {count} generated requests")
    for case in generate.of_corpus():
        found["corpus"][case.name] = node.run(case)
    launched = _some(generate.cases(first, count), 25)
    for position, case in enumerate(launched):
        again = GeneratedContainer(
            f"l{position:03}", case.annotations, case.env, changes=case.changes
        )
        found["launched"][again.name] = node.launch(again)
    found["opened"] = {
        name: node.open(name, quota, rootless=rootless)
        for name, quota, rootless in generate.opens(60)
    }
    tell("corpus, launcher and host processes")
    return {**found, **node.about()}


def _some(every: Iterable[GeneratedContainer], step: int) -> list[GeneratedContainer]:
    return [case for number, case in enumerate(every) if number % step == 0]


def _enter_cgroup(name: str, pid: int) -> None:
    """Put a process into a cgroup of its own, as an engine does, in every hierarchy."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if rest.split()[0] in {"cgroup", "cgroup2"}:
            folder = Path(fields.split()[4]) / name
            with contextlib.suppress(
                OSError
            ):  # cpuset of version 1 takes no process without its CPUs
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "cgroup.procs").write_text(str(pid))


def _by_tenant(events: list[dict[str, Any]], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the events of each tenant in their order, and which others there were."""
    tenants: dict[str, list[dict[str, Any]]] = {}
    others: dict[str, Any] = {}
    for event in events:
        whose = str(event.get("id") or names.get(str(event.get("tenant")), ""))
        if whose:
            tenants.setdefault(whose, []).append(event)
        elif event["event"] != masks.RACED:
            others.setdefault(str(event["event"]), event)
    return {"tenants": tenants, "others": others}
