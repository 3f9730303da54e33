# SPDX-License-Identifier: Apache-2.0
"""MPS: what simulator/README.md assumes where NVIDIA's manual does not say it, and its limits.

Each part has a control daemon of its own, with folders of its own: nobody else's is asked. The
faults are those of its own clients. Containers have their limits by the client with which gpushared
commands a control daemon.
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

from gpushare.daemon.mps.control import ControlProgram, MpsControl, MpsError, TenantLimits
from gpushare.verify.runners import ProbeFailed

from .driver import DriverPaths
from .process import Child, child, environment
from .report import NotMeasured, ReportRow

PROGRAM = "nvidia-cuda-mps-control"
GIB = 1 << 30
LIMIT = 2 * GIB
SECONDS = 30.0
ERROR_SECONDS = 10.0
USER = 65534  # nobody
COMMANDS = (
    "set_default_active_thread_percentage 100",
    "set_active_thread_percentage {server} 100",
    "terminate_client {server} {pid}",
    "shutdown_server {server}",
)


@dataclass(frozen=True)
class RunningMps:
    """A control daemon, and the client with which gpushared commands one."""

    driver: DriverPaths
    control: MpsControl

    def command(self, line: str) -> str:
        """Return what a command prints; MpsError."""
        return self.control.program.run(line, SECONDS)

    @property
    def server(self) -> str:
        """The PID of the one server."""
        return self.command("get_server_list")

    @contextmanager
    def client(self, *under: str, **env: str) -> Iterator[Child]:
        """Start a program that finds the daemon, unless `env` says otherwise; `under` runs it."""
        program = self.control.program
        folders = {
            "CUDA_MPS_PIPE_DIRECTORY": str(program.pipe_folder),
            "CUDA_MPS_LOG_DIRECTORY": str(program.log_folder),
        }
        merged = environment(self.driver.env, folders, env)
        argv = child("tried", str(self.driver.cuda), self.driver.uuid)
        with Child("mps", [*under, *argv], merged) as started:
            started.start()
            yield started


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    """What MPS does here."""
    program = control_program()
    if program is None:
        yield ReportRow("MPS", missing=f"{PROGRAM} is not on this machine")
        return
    for part in (
        _percentages,
        _memory,
        _wrong_entries,
        _containers,
        _commands,
        _folder,
        _lists,
        _no_daemon,
        _fault,
        _endings,
    ):
        try:
            with _running(driver, program) as running:
                yield from part(running)
        except (NotMeasured, ProbeFailed, MpsError) as error:
            yield ReportRow(f"the rest of {part.__name__.strip('_')}", missing=str(error))


def control_program() -> str | None:
    """Return nvidia-cuda-mps-control, None without one; a simulated one is by the device file."""
    simulated = os.environ.get("GPUSHARE_SIM_DEVICE")
    folders = [str(Path(simulated).parent)] if simulated else []
    return shutil.which(PROGRAM, path=os.pathsep.join([*folders, os.environ.get("PATH", "")]))


@contextmanager
def _running(driver: DriverPaths, path: str) -> Iterator[RunningMps]:
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        Path(folder).chmod(0o755)  # another user is to reach the sockets
        pipe, log = Path(folder, "pipe"), Path(folder, "log")
        for place in (pipe, log):
            place.mkdir(mode=0o755)
        env = environment(driver.env)
        program = ControlProgram(Path(path), pipe, log, driver.uuid, env=env)
        # In the foreground, it and its servers write every line to the standard output.
        with (log / "output.log").open("wb") as output:
            process = subprocess.Popen(
                program.arguments(),
                env=program.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        control = MpsControl(program)
        try:
            _wait_until_ready(control, process)
            yield RunningMps(driver, control)
        finally:
            with contextlib.suppress(MpsError):
                control.quit(1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS)
            process.kill()
            process.wait()


def _wait_until_ready(control: MpsControl, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + SECONDS
    while not control.is_ready():
        if process.poll() is not None:
            said = (control.program.log_folder / "output.log").read_text(errors="replace").strip()
            raise NotMeasured(f"{' '.join(control.program.arguments())}: {said}")
        if time.monotonic() > until:
            raise NotMeasured("the control daemon does not answer")
        time.sleep(0.1)


def _percentages(mps: RunningMps) -> Iterator[ReportRow]:
    for percent in (100, 75, 50, 25, 10, 1):
        with mps.client(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=str(percent)) as client:
            found = client.ask("begin")
            yield ReportRow(f"multiprocessors at {percent} %", found.get("multiprocessors"))
    command = f"set_active_thread_percentage {mps.server} 50"
    yield ReportRow("set_active_thread_percentage SERVER 50 prints", mps.command(command))
    with mps.client() as plain, mps.client(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="100") as raised:
        limit = plain.ask("begin")["multiprocessors"]
        seen = raised.ask("begin")["multiprocessors"]
        yield ReportRow.claim("a program cannot raise its percentage", seen <= limit, seen)
        seen = plain.ask("attribute")["in_mps"]
        yield ReportRow.claim("MPS_ENABLED is 1 in a client", seen == 1, seen)


def _memory(mps: RunningMps) -> Iterator[ReportRow]:
    printed = mps.command(f"set_default_device_pinned_mem_limit 0 {LIMIT // GIB}G")
    yield ReportRow("set_default_device_pinned_mem_limit 0 2G prints", printed)
    with mps.client() as one, mps.client() as other:
        for name, client in (("the first client", one), ("a second one", other)):
            client.ask("begin")
            before = client.ask("info")
            yield ReportRow(f"{name} with a limit of 2 GiB: free", before["free"], "bytes")
            total = before["total"]
            whole = total == mps.driver.total_bytes
            yield ReportRow.claim(f"{name}: the total is the card's", whole, total)
            refused = client.ask(f"linear {before['free'] + 4 * (1 << 20)}")
            name_of = f"{name}: more than what is free is refused"
            yield ReportRow.claim(name_of, refused["code"] == 2, refused)
            fits = client.ask(f"linear {LIMIT // 2}")
            yield ReportRow.claim(f"{name}: half of the limit is not", fits["code"] == 0, fits)


def _wrong_entries(mps: RunningMps) -> Iterator[ReportRow]:
    printed = mps.command("set_default_device_pinned_mem_limit 9 1G")
    yield ReportRow("set_default_device_pinned_mem_limit 9 1G prints", printed)
    mps.command(f"set_default_device_pinned_mem_limit 0 {LIMIT // GIB}G")
    for entries in ("0=1G", f"{mps.driver.uuid}=1G", "0=1G,7=1G", "0=nonsense"):
        with mps.client(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=entries) as client:
            found = client.ask("begin")
            shown = entries.replace(mps.driver.uuid, "UUID")
            name = f"limit 2 GiB, {shown} in the environment: free"
            if found["code"]:
                yield ReportRow(name, missing=str(found["name"]))
                continue
            free = client.ask("info")["free"]
            yield ReportRow(name, free, "bytes", "" if free <= LIMIT else "it has no limit")


def _containers(mps: RunningMps) -> Iterator[ReportRow]:
    if "GPUSHARE_SIM_DEVICE" in os.environ:
        raise NotMeasured("the simulator's server has no limits")
    limits = {"one": TenantLimits(LIMIT, 50), "other": TenantLimits(LIMIT // 2, 25)}
    mps.control.enforce(limits.values())
    for name, each in limits.items():
        with mps.client(**each.variables) as client:
            begun, free = client.ask("begin"), client.ask("info")["free"]
            yield ReportRow(f"container {name}: multiprocessors", begun["multiprocessors"])
            fits = free <= each.memory_bytes
            yield ReportRow.claim(f"container {name}: free is within its limit", fits, free)
            clients = [*mps.control.clients()]
            listed = begun["pid"] in clients
            yield ReportRow.claim(f"container {name}: listed by the host's PID", listed, clients)
    raised = {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=64G",
    }
    with mps.client(**{**limits["one"].variables, **raised}) as client:
        seen, free = client.ask("begin")["multiprocessors"], client.ask("info")["free"]
        held = seen < mps.driver.multiprocessors and free <= LIMIT
        yield ReportRow.claim("the largest container cannot raise its limits", held, (seen, free))


@contextmanager
def _control_alone(mps: RunningMps) -> Iterator[str]:
    """Yield a pipe folder as a container's: it has a hard link to `control`, and nothing else."""
    pipe = mps.control.program.pipe_folder
    with tempfile.TemporaryDirectory(dir=pipe.parent) as folder:
        Path(folder, "control").hardlink_to(pipe / "control")
        Path(folder).chmod(0o555)
        yield folder


def _commands(mps: RunningMps) -> Iterator[ReportRow]:
    """What a container can change through the folder that it has, while it is the only client."""
    mps.control.enforce([TenantLimits(LIMIT, 50)])
    under: dict[str, list[str]] = {"root": []}
    setpriv = shutil.which("setpriv")
    if setpriv and os.geteuid() == 0:
        under["another user"] = [setpriv, f"--reuid={USER}", "--clear-groups"]
        if "GPUSHARE_SIM_DEVICE" in os.environ:
            # A simulated driver can lie in root's folder. Then permissions show nothing.
            under["another user"] += ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    with _control_alone(mps) as folder:
        for name, prefix in under.items():
            try:
                yield from _commanded(mps, name, prefix, folder)
            except ProbeFailed as error:  # this checkout may be in root's folder
                yield ReportRow(name, missing=str(error))


def _commanded(mps: RunningMps, name: str, prefix: list[str], folder: str) -> Iterator[ReportRow]:
    program = mps.control.program
    with mps.client(*prefix, CUDA_MPS_PIPE_DIRECTORY=folder) as client:
        pid, server = client.ask("begin").get("pid", 0), mps.server
        for command in COMMANDS:
            done = subprocess.run(
                [*prefix, str(program.program)],
                input=command.format(server=server, pid=pid) + "\n",
                env={**program.environment(), "CUDA_MPS_PIPE_DIRECTORY": folder},
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            said = " ".join((done.stdout + done.stderr).split())
            shown = said or f"exit status {done.returncode}"
            yield ReportRow(f"{name}, by control: {command.format(server='S', pid='P')}", shown)
        left = mps.command("get_default_active_thread_percentage")
        yield ReportRow(f"{name}: the default percentage then", left)
        yield ReportRow(f"{name}: its client then", str(client.ask("synchronize")["name"]))


def _folder(mps: RunningMps) -> Iterator[ReportRow]:
    """What a client uses of the pipe folder, and beside it, once a server runs."""
    with mps.client() as first, _control_alone(mps) as folder:
        first.ask("begin")
        names = sorted(path.name for path in mps.control.program.pipe_folder.iterdir())
        yield ReportRow("the pipe folder once a server runs", ", ".join(names))
        with mps.client(CUDA_MPS_PIPE_DIRECTORY=folder) as client:
            found = client.ask("begin")
            served = not found["code"] and client.ask("attribute")["in_mps"] == 1
            yield ReportRow.claim("a client needs no more of it than control", served, found)
            files = ", ".join(client.ask("opened")["files"])
            yield ReportRow("a client has open or mapped", files or "nothing")


def _lists(mps: RunningMps) -> Iterator[ReportRow]:
    with mps.client() as client, mps.client() as observer:
        pid, server = str(client.ask("begin")["pid"]), mps.server
        client.ask("linear 134217728")
        found = observer.ask("listed")
        for kind in ("compute", "mps"):
            for name, which in (("a client with 128 MiB", pid), ("the server", server)):
                size = found[kind].get(which)
                row = f"NVML's list of {kind} processes: {name}"
                listed = which in found[kind]
                yield ReportRow(row, size if listed else "not listed", "bytes" if size else "")


def _no_daemon(mps: RunningMps) -> Iterator[ReportRow]:
    mps.command("set_default_active_thread_percentage 10")
    with mps.client(CUDA_MPS_PIPE_DIRECTORY="/nonexistent") as client:
        found = client.ask("begin")
        whole = found.get("multiprocessors") == mps.driver.multiprocessors
        yield ReportRow.claim("without a daemon, it has the card without limits", whole, found)
        seen = client.ask("attribute")["in_mps"]
        yield ReportRow.claim("MPS_ENABLED is 0 without a server", seen == 0, seen)


def _error(client: Child) -> str:
    """Return the error that a client gets, which may be a moment later; CUDA_SUCCESS for none."""
    until = time.monotonic() + ERROR_SECONDS
    while True:
        found = client.ask("synchronize")
        if found["code"] or time.monotonic() > until:
            return str(found["name"])
        time.sleep(0.05)


def _fault(mps: RunningMps) -> Iterator[ReportRow]:
    with ExitStack() as stack:
        culprit, other = (stack.enter_context(mps.client()) for _ in range(2))
        pids = [culprit.ask("begin")["pid"], other.ask("begin")["pid"]]
        server = mps.server
        yield ReportRow("a fault: the client that caused it", culprit.ask("trap")["name"])
        yield ReportRow("a fault: another client", _error(other))
        state = mps.command(f"get_server_status {server}")
        yield ReportRow("a fault: the server's state", state)
        with mps.client() as late:
            found = late.ask("begin")
            yield ReportRow("a fault: a new client", found.get("name", "is accepted"))
        text = (mps.control.program.log_folder / "output.log").read_text(errors="replace")
        lines = tuple(line for line in text.splitlines() if "fatal" in line)
        named = any(str(pids[0]) in line for line in lines)
        note = "names the client that caused it" if named else "does not name the cause"
        yield ReportRow("a fault: lines of the server's log", len(lines), note=note, detail=lines)
    with mps.client() as next_one:
        found = next_one.ask("begin")
        name = "after all have ended, a client is accepted"
        yield ReportRow.claim(name, not found["code"], found)


def _endings(mps: RunningMps) -> Iterator[ReportRow]:
    with mps.client() as one, mps.client() as other:
        pid = one.ask("begin")["pid"]
        other.ask("begin")
        server = mps.server
        printed = mps.command(f"terminate_client {server} {pid}")
        yield ReportRow("terminate_client prints", printed)
        yield ReportRow("terminate_client: the client", _error(one))
        found = other.ask("synchronize")
        yield ReportRow.claim("terminate_client: another goes on", not found["code"], found)
        os.kill(int(server), signal.SIGKILL)
        yield ReportRow("the server is killed: a client", _error(other))
