# SPDX-License-Identifier: Apache-2.0
"""MPS: what simulator/README.md assumes where NVIDIA's manual does not say it, and its limits.

Each part has a control daemon of its own, with folders of its own: nobody else's is asked. The
faults are those of its own clients.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpushare.verify import ProbeFailed

from .driver import DriverPaths
from .process import Child, child, environment
from .report import NotMeasured, ReportRow

PROGRAM = "nvidia-cuda-mps-control"
GIB = 1 << 30
LIMIT = 2 * GIB
SECONDS = 30.0
ERROR_SECONDS = 10.0


@dataclass(frozen=True)
class MeasuredMps:
    """A running control daemon."""

    program: str
    driver: DriverPaths
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def env(self) -> dict[str, str]:
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self.folder / "log"),
        }

    def command(self, line: str) -> str:
        """Return what a command prints; NotMeasured where it does not end."""
        try:
            done = subprocess.run(
                [self.program],
                input=f"{line}\n",
                env=environment(self.driver.env, self.env),
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise NotMeasured(f"{line} did not end within {SECONDS:g} s") from error
        if done.returncode:
            raise NotMeasured(f"{line}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout.strip()

    @property
    def server(self) -> str:
        """The PID of the one server."""
        return self.command("get_server_list")

    @contextmanager
    def client(self, **env: str) -> Iterator[Child]:
        """Start a program that finds the daemon."""
        argv = child("mps", str(self.driver.cuda), self.driver.uuid)
        merged = environment(self.driver.env, self.env, env)
        with Child("mps", argv, merged) as started:
            started.start()
            yield started

    def log(self) -> str:
        """Return the server's log."""
        with contextlib.suppress(OSError):
            return (self.folder / "log" / "server.log").read_text(errors="replace")
        return ""


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    """What MPS does here."""
    program = control_program()
    if program is None:
        yield ReportRow("MPS", missing=f"{PROGRAM} is not on this machine")
        return
    for part in (_percentages, _memory, _wrong_entries, _lists, _no_daemon, _fault, _endings):
        try:
            with _control(program, driver) as control:
                yield from part(control)
        except (NotMeasured, ProbeFailed) as error:
            yield ReportRow(f"the rest of {part.__name__.strip('_')}", missing=str(error))


def control_program() -> str | None:
    """Return nvidia-cuda-mps-control, None without one; a simulated one is by the device file."""
    simulated = os.environ.get("GPUSHARE_SIM_DEVICE")
    folders = [str(Path(simulated).parent)] if simulated else []
    return shutil.which(PROGRAM, path=os.pathsep.join([*folders, os.environ.get("PATH", "")]))


@contextmanager
def _control(program: str, driver: DriverPaths) -> Iterator[MeasuredMps]:
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        for name in ("pipe", "log"):
            (Path(folder) / name).mkdir()
        named = {"CUDA_VISIBLE_DEVICES": driver.uuid}
        folders = {
            "CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe",
            "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log",
        }
        process = subprocess.Popen(
            [program, "-f"],
            env=environment(driver.env, folders, named),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        control = MeasuredMps(program, driver, Path(folder), process)
        try:
            _wait_until_ready(control)
            yield control
        finally:
            with contextlib.suppress(NotMeasured):
                control.command("quit -t 1")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS)
            process.kill()
            process.wait()


def _wait_until_ready(control: MeasuredMps) -> None:
    until = time.monotonic() + SECONDS
    while True:
        try:
            control.command("get_default_active_thread_percentage")
        except NotMeasured:
            if time.monotonic() > until or control.process.poll() is not None:
                raise
            time.sleep(0.1)
        else:
            return


def _percentages(control: MeasuredMps) -> Iterator[ReportRow]:
    for percent in (100, 75, 50, 25, 10, 1):
        with control.client(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=str(percent)) as client:
            found = client.ask("begin")
            yield ReportRow(f"multiprocessors at {percent} %", found.get("multiprocessors"))
    command = f"set_active_thread_percentage {control.server} 50"
    yield ReportRow("set_active_thread_percentage SERVER 50 prints", control.command(command))
    with (
        control.client() as plain,
        control.client(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="100") as raised,
    ):
        limit = plain.ask("begin")["multiprocessors"]
        seen = raised.ask("begin")["multiprocessors"]
        yield ReportRow.claim("a program cannot raise its percentage", seen <= limit, seen)


def _memory(control: MeasuredMps) -> Iterator[ReportRow]:
    printed = control.command(f"set_default_device_pinned_mem_limit 0 {LIMIT // GIB}G")
    yield ReportRow("set_default_device_pinned_mem_limit 0 2G prints", printed)
    with control.client() as one, control.client() as other:
        for name, client in (("the first client", one), ("a second one", other)):
            client.ask("begin")
            before = client.ask("info")
            yield ReportRow(f"{name} with a limit of 2 GiB: free", before["free"], "bytes")
            total = before["total"]
            whole = total == control.driver.total_bytes
            yield ReportRow.claim(f"{name}: the total is the card's", whole, total)
            refused = client.ask(f"linear {before['free'] + 4 * (1 << 20)}")
            name_of = f"{name}: more than what is free is refused"
            yield ReportRow.claim(name_of, refused["code"] == 2, refused)
            fits = client.ask(f"linear {LIMIT // 2}")
            yield ReportRow.claim(f"{name}: half of the limit is not", fits["code"] == 0, fits)


def _wrong_entries(control: MeasuredMps) -> Iterator[ReportRow]:
    printed = control.command("set_default_device_pinned_mem_limit 9 1G")
    yield ReportRow("set_default_device_pinned_mem_limit 9 1G prints", printed)
    control.command(f"set_default_device_pinned_mem_limit 0 {LIMIT // GIB}G")
    for entries in ("0=1G", f"{control.driver.uuid}=1G", "0=1G,7=1G", "0=nonsense"):
        with control.client(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=entries) as client:
            found = client.ask("begin")
            shown = entries.replace(control.driver.uuid, "UUID")
            name = f"limit 2 GiB, {shown} in the environment: free"
            if found["code"]:
                yield ReportRow(name, missing=str(found["name"]))
                continue
            free = client.ask("info")["free"]
            yield ReportRow(name, free, "bytes", "" if free <= LIMIT else "it has no limit")


def _lists(control: MeasuredMps) -> Iterator[ReportRow]:
    with control.client() as client, control.client() as observer:
        pid, server = str(client.ask("begin")["pid"]), control.server
        client.ask("linear 134217728")
        found = observer.ask("listed")
        for kind in ("compute", "mps"):
            for name, which in (("a client with 128 MiB", pid), ("the server", server)):
                size = found[kind].get(which)
                row = f"NVML's list of {kind} processes: {name}"
                listed = which in found[kind]
                yield ReportRow(row, size if listed else "not listed", "bytes" if size else "")


def _no_daemon(control: MeasuredMps) -> Iterator[ReportRow]:
    control.command("set_default_active_thread_percentage 10")
    with control.client(CUDA_MPS_PIPE_DIRECTORY=str(control.folder)) as client:
        found = client.ask("begin")
        whole = found.get("multiprocessors") == control.driver.multiprocessors
        yield ReportRow.claim("without a daemon, it has the card without limits", whole, found)


def _error(client: Child) -> str:
    """Return the error that a client gets, which may be a moment later; CUDA_SUCCESS for none."""
    until = time.monotonic() + ERROR_SECONDS
    while True:
        found = client.ask("synchronize")
        if found["code"] or time.monotonic() > until:
            return str(found["name"])
        time.sleep(0.05)


def _fault(control: MeasuredMps) -> Iterator[ReportRow]:
    with ExitStack() as stack:
        culprit, other = (stack.enter_context(control.client()) for _ in range(2))
        pids = [culprit.ask("begin")["pid"], other.ask("begin")["pid"]]
        server = control.server
        yield ReportRow("a fault: the client that caused it", culprit.ask("trap")["name"])
        yield ReportRow("a fault: another client", _error(other))
        state = control.command(f"get_server_status {server}")
        yield ReportRow("a fault: the server's state", state)
        with control.client() as late:
            found = late.ask("begin")
            yield ReportRow("a fault: a new client", found.get("name", "is accepted"))
        lines = tuple(line for line in control.log().splitlines() if "ault" in line)
        named = any(str(pids[0]) in line for line in lines)
        note = "names the client that caused it" if named else "does not name the cause"
        yield ReportRow("a fault: lines of the server's log", len(lines), note=note, detail=lines)
    with control.client() as next_one:
        found = next_one.ask("begin")
        name = "after all have ended, a client is accepted"
        yield ReportRow.claim(name, not found["code"], found)


def _endings(control: MeasuredMps) -> Iterator[ReportRow]:
    with control.client() as one, control.client() as other:
        pid = one.ask("begin")["pid"]
        other.ask("begin")
        server = control.server
        printed = control.command(f"terminate_client {server} {pid}")
        yield ReportRow("terminate_client prints", printed)
        yield ReportRow("terminate_client: the client", _error(one))
        found = other.ask("synchronize")
        yield ReportRow.claim("terminate_client: another goes on", not found["code"], found)
        os.kill(int(server), signal.SIGKILL)
        yield ReportRow("the server is killed: a client", _error(other))
