# SPDX-License-Identifier: Apache-2.0
"""Which tests a run has, how they share the machine, and how it is interrupted.

`--gate` leaves the tests that a change most likely breaks: all of unit, c and threads but those
marked `thorough`, and of system those marked `gate`. What `needs` a program that `./dev setup`
does not bring is not among them, but for Kubernetes' admission plugins where they are built. The
gate skips nothing: a test that skips itself has failed. What runs on NVIDIA's own driver is left
out where that could not be fetched, and the gate says so.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import admission
import nvidia_packages
import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

from tests import leftovers, properties
from tests.real_driver import RealDriver
from tests.stack import forked
from tests.stack.program import Missing, find
from tests.supervise import GRACE_SECONDS, PR_SET_PDEATHSIG

properties.load_profile()
ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
#: Where `./dev test --all` says what came of it.
WHOLE_RUN = "docs/measurements/all.md"
PAGE = ROOT / WHOLE_RUN
#: Where ./dev looks for programs after those of PATH.
PLACES = ("/usr/local/sbin", "/usr/sbin", "/sbin", str(BUILD / "tools/bin"))
#: What a test marked `needs` may name: programs, modules of Python, and roots below BUILD.
PROGRAMS = {
    **{name: name for name in ("helm", "kubectl", "promtool", "chromium")},
    "shells": "zsh",
    "aarch64": "qemu-aarch64",
}
MODULES = {"clients": "numba_cuda", "docs": "sphinx", "package": "auditwheel"}
ROOTS = ("debian13", "debian14", "bare12", "bare13", "older11", "source12")
#: A child that is forked beside gRPC's threads has none of them, and need not start them again.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
SYSTEM = "tests/system/"
#: How many workers run end-to-end tests. More are in the way of those that measure shares of time.
SYSTEM_WORKERS = 2
#: Of the other workers: what an end-to-end test starts has the processor first.
SPARE_NICENESS = 10
#: A crowd of programs has a few each, and a login's soft limit may be 1024.
DESCRIPTORS = 20_000
#: What measures shares of time, or loads the machine most: one at a time. It takes longest.
SHARES = "tests/system/shares"
MEASURES = (
    "packages",
    "shares",
    "test_demo.py",
    "test_gpu.py",
    "test_readme.py",
)


class OneAtATime(LoadScopeScheduling):  # type: ignore[misc]
    """The system tests of one folder, and of one file beside the folders, in one worker.

    They share its stack (tests/system/conftest.py). What measures shares is in order with what
    loads the machine most, and comes first. Two workers run them, before anything else, and wait
    most of the time; a spare one runs the other tests meanwhile, file by file.

    xdist's own `loadgroup` does the same by writing marks into node ids, which pytest 9 no longer
    reads back: they then ran side by side, without a word.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if not file.startswith(SYSTEM):
            return file
        name = file.removeprefix(SYSTEM).partition("/")[0]
        return SHARES if name in MEASURES else SYSTEM + name

    def _assign_work_unit(self, node: WorkerController) -> None:
        is_spare = self._is_spare(node)
        wanted = [scope for scope in self.workqueue if scope.startswith(SYSTEM) != is_spare]
        if wanted:
            first = SHARES if SHARES in wanted else wanted[0]
            self.workqueue.move_to_end(first, last=False)
        elif is_spare:
            node.shutdown()
            return
        super()._assign_work_unit(node)

    def _is_spare(self, node: WorkerController) -> bool:
        """Whether it runs no end-to-end tests. It takes the place of one that has crashed."""
        numbers = sorted(_number(each.gateway.id) for each in self.nodes)
        return numbers.index(_number(node.gateway.id)) >= SYSTEM_WORKERS


def _number(worker: str) -> int:
    """Return the number of a worker: gw0 is the first."""
    return int(worker.removeprefix("gw"))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneAtATime:
    """Give xdist our scheduler, whatever --dist says."""
    return OneAtATime(config, log)


class Interrupt:
    """Makes the first SIGINT or SIGTERM a KeyboardInterrupt, and the next ones nothing.

    The fixtures are torn down after it, and a second signal would stop them half-way: a terminal
    signals the whole group, xdist its workers, and ./dev the process that hands out the tests.
    """

    def __init__(self) -> None:
        self.came = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._come)
        # A script starts its background jobs with SIGQUIT ignored and nohup all with SIGHUP, and
        # children inherit that. A handler of ours is the default to them, and ends nothing here.
        for number in (signal.SIGQUIT, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _come(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - signal's
        if not self.came:
            self.came = True
            raise KeyboardInterrupt


class Workers:
    """Interrupts the workers of an interrupted run, and waits for them: xdist gives them 10 s."""

    def __init__(self, interrupt: Interrupt) -> None:
        self._interrupt = interrupt
        self._nodes: list[WorkerController] = []

    def pytest_testnodeready(self, node: WorkerController) -> None:
        """Remember a worker."""
        self._nodes.append(node)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Have the workers tear down their fixtures."""
        if not self._interrupt.came:
            return
        for node in self._nodes:
            with suppress(ProcessLookupError):
                os.kill(node.gateway._io.popen.pid, signal.SIGINT)
        for node in self._nodes:
            with suppress(OSError, EOFError, node.channel.RemoteError, node.channel.TimeoutError):
                node.channel.waitclose(GRACE_SECONDS)


class Checks:
    """`./dev check` beside the tests.

    What it found is printed before pytest's own count, and fails the run as a test does.
    """

    def __init__(self, said: Path, options: list[str], interrupt: Interrupt) -> None:
        self._said = said
        self._interrupt = interrupt
        command = [sys.executable, "-m", "tools.check", *options]
        supervised = [sys.executable, "-m", "tests.supervise", *command]
        with said.open("wb") as file:
            self._process = subprocess.Popen(supervised, stdout=file, stderr=subprocess.STDOUT)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Wait for the checks, or end them where the run was interrupted."""
        try:
            if not self._interrupt.came and self._process.wait() and not session.exitstatus:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        except KeyboardInterrupt:
            session.exitstatus = pytest.ExitCode.INTERRUPTED
        if self._interrupt.came:
            self._process.terminate()
            self._process.wait()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print their output."""
        terminalreporter.section("checks")
        terminalreporter.write(self._said.read_text(encoding="utf-8"))


class WholeRun:
    """Writes what came of `./dev test --all`; whoever ran it commits the page."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the page."""
        counts = {
            name: len(terminalreporter.stats.get(name, ()))
            for name in ("passed", "failed", "error", "skipped")
        }
        minutes, seconds = divmod(round(time.monotonic() - self._begun), 60)
        commit = _git("rev-parse", "--short", "HEAD")
        if _git("status", "--porcelain", "--", ".", f":!{WHOLE_RUN}"):
            commit += ", with changes"
        session = terminalreporter._session
        result = "failed" if session is None or session.exitstatus else "passed"
        PAGE.write_text(
            "# The last run of everything\n\n"
            "`./dev test --all` writes this page: all tests, and all of `./dev check`.\n\n"
            "| | |\n|---|---|\n"
            f"| commit | {commit} |\n"
            f"| ended | {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC |\n"
            f"| took | {minutes} min {seconds} s on {os.cpu_count()} cores |\n"
            f"| tests | {', '.join(f'{count} {name}' for name, count in counts.items())} |\n"
            f"| result, with the checks | {result} |\n",
            encoding="utf-8",
        )


def _git(*words: str) -> str:
    done = subprocess.run(("git", *words), cwd=ROOT, check=False, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(release, marks=[pytest.mark.real_driver, *slow])
        for release in nvidia_packages.releases()
        for slow in [[pytest.mark.thorough] if release != nvidia_packages.GATE else []]
    ],
)
def real_driver(request: pytest.FixtureRequest) -> RealDriver:
    """Each release of NVIDIA's user-space driver; in the gate one."""
    return RealDriver(request.param)


class GateOnly:
    """Leaves the gate's tests, and fails those that skip themselves."""

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say that NVIDIA's driver could not be fetched."""
        if not RealDriver(nvidia_packages.GATE).is_there:
            terminalreporter.write_line(f"skipped what runs on {RealDriver.MISSING}")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Deselect the tests that run with --all alone."""
        left = [item for item in items if not _is_of_the_gate(item)]
        if left:
            config.hook.pytest_deselected(items=left)
            items[:] = [item for item in items if _is_of_the_gate(item)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        """Make a failure of a skip, but where this kernel lacks something."""
        report: pytest.TestReport = yield  # type: ignore[assignment]
        is_of_kernel = "kernel: " in str(report.longrepr)
        if report.skipped and not is_of_kernel and not hasattr(report, "wasxfail"):
            report.outcome = "failed"
            report.longrepr = f"skipped in the gate: {report.longrepr}"
        return report  # type: ignore[return-value]


def _is_of_the_gate(item: pytest.Item) -> bool:
    needed = _needed(item)
    if any(item.iter_markers("thorough")) or needed - {"admission"}:
        return False
    if needed and not _is_there("admission"):
        return False  # tests/unit/kubernetes/test_manifests.py looks at the digest of the policies
    if any(item.iter_markers("real_driver")) and not RealDriver(nvidia_packages.GATE).is_there:
        return False
    return not item.nodeid.startswith(SYSTEM) or any(item.iter_markers("gate"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test whose program is missing, and say how it is got."""
    missing = [name for name in sorted(_needed(item)) if not _is_there(name)]
    if missing == ["admission"]:
        pytest.fail("Kubernetes' admission plugins missing: ./dev admission", pytrace=False)
    if missing:
        pytest.fail(f"{' '.join(missing)} missing: ./dev setup --all", pytrace=False)
    if any(item.iter_markers("real_driver")) and not RealDriver(_release_of(item)).is_there:
        pytest.fail(RealDriver.MISSING, pytrace=False)


def _release_of(item: pytest.Item) -> str:
    return str(item.callspec.params["real_driver"])  # type: ignore[attr-defined]


def _needed(item: pytest.Item) -> set[str]:
    return {name for marker in item.iter_markers("needs") for name in marker.args}


def _is_there(name: str) -> bool:
    if name in MODULES:
        return find_spec(MODULES[name]) is not None
    if name in ROOTS:
        return (BUILD / name).exists()
    if name == "admission":
        return admission.is_made(BUILD)
    try:
        find(PROGRAMS[name])
    except Missing:
        return False
    return True


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --gate and --checks."""
    parser.addoption("--gate", action="store_true", help="only the tests of the gate")
    parser.addoption("--checks", choices=("gate", "all"), help="run ./dev check beside the tests")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare for an interruption; start the checks, in the process that hands out the tests."""
    interrupt = Interrupt()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, DESCRIPTORS)), hard))
    os.environ["PATH"] = os.pathsep.join((os.environ.get("PATH", os.defpath), *PLACES))
    if config.getoption("--gate"):
        config.pluginmanager.register(GateOnly(), "gpushare-gate")
    if hasattr(config, "workerinput"):
        if _number(config.workerinput["workerid"]) >= SYSTEM_WORKERS:
            os.nice(SPARE_NICENESS)
        # The process that hands out the tests may be killed: then nothing else ends the fixtures.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
        return
    plugins = config.pluginmanager
    if plugins.hasplugin("dsession"):
        plugins.register(Workers(interrupt), "gpushare-workers")
    if which := config.getoption("--checks"):
        log = BUILD / "log/check.log"
        if which == "all":
            plugins.register(WholeRun(), "gpushare-whole-run")
        options = ["--all"] if which == "all" else []
        plugins.register(Checks(log, options, interrupt), "gpushare-checks")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Note where tests mount something besides their stacks."""
    config = session.config
    if not hasattr(config, "workerinput"):
        leftovers.note_mounts(config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]


def pytest_unconfigure() -> None:
    """Leave no process: an interrupted worker's is looked for right after the run."""
    forked.end()
