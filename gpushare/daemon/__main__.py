# SPDX-License-Identifier: Apache-2.0
"""`gpushared`: starts, serves until SIGTERM, and leaves every tenant running."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import threading
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import gpushare
from gpushare import config as configuration
from gpushare import wait_policy
from gpushare.config import Config
from gpushare.daemon.composition import CannotStart, build_state, compose
from gpushare.daemon.core import privileges
from gpushare.daemon.core.log import log, report_suppressed, sinks
from gpushare.daemon.core.loop import Loop, Worker, boot_id
from gpushare.daemon.eviction.checkpoint_client import CheckpointClient
from gpushare.daemon.freezer import Freezer
from gpushare.daemon.lifecycle import container_edits, release, scheduled
from gpushare.daemon.lifecycle.driver_loader import DriverLoader, SamplingLoop
from gpushare.daemon.observe.time_limits import LOOK_SECONDS as TIME_SECONDS
from gpushare.daemon.observe.time_limits import IdleHolders, TimeLimits
from gpushare.daemon.operator import reload
from gpushare.daemon.pages.mounts import TenantMounts
from gpushare.daemon.pages.tenants import SIZE_BYTES
from gpushare.daemon.scheduler_sync import SchedulerSync
from gpushare.daemon.service import systemd
from gpushare.daemon.service.control_server import ControlServer
from gpushare.daemon.service.systemd import StartingSocket, Watchdog
from gpushare.daemon.state import DaemonState, Threads
from gpushare.daemon.store.history import History
from gpushare.daemon.store.metrics_history import MetricsHistory, process_arguments
from gpushare.errors import UserError, exit_with
from gpushare.host.driver import device_nodes
from gpushare.host.rooted_tree import RootedTree

_FINISH_SECONDS: Final = 5.0
_FEED_SECONDS: Final = 60.0  # where no watchdog asks: a thread that hangs is logged all the same
_REPORT_SECONDS: Final = 60.0
_RENEW_SECONDS: Final = 600.0


def main() -> None:
    """Run the daemon; exit status 0 after SIGTERM, that of the error otherwise."""
    arguments = _parser().parse_args()
    if arguments.make_nodes:
        _make_nodes()
        return
    try:
        run(configuration.load(arguments.config))
    except UserError as error:
        exit_with(error, "gpushared")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpushared",
        description="Decides what each container gets of the GPUs of this machine.",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="instead of /etc/gpushare/gpushare.yaml"
    )
    parser.add_argument(
        "--make-nodes",
        action="store_true",
        help="load the driver's modules, make its device nodes and exit; for the unit",
    )
    parser.add_argument("--version", action="version", version=f"gpushared {gpushare.__version__}")
    return parser


def _make_nodes() -> None:
    """Make a driver that is installed ready for use; never a reason for gpushared not to start."""
    prepared = device_nodes.prepare_driver(RootedTree())
    if prepared.ran or prepared.nodes:
        log("driver-prepared", ran=prepared.ran, nodes=prepared.nodes)
    for why in prepared.problems:
        log("driver-preparation-failed", "warning", reason=why)


def run(config: Config) -> None:
    """Serve until SIGTERM or SIGINT; UserError when it cannot start."""
    privileges.require_root()
    os.umask(0o022)
    with ExitStack() as ends:
        ends.callback(os.close, _lock(config))
        os.umask(0o077)  # files that others may read are made so explicitly
        privileges.raise_descriptors()
        # Before any other thread is there: both are each thread's own.
        privileges.settle()
        # A SIGHUP that arrives before there is a configuration to reload must not end the daemon.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        listener = StartingSocket(config.socket, reload.read_gid(config))
        ends.callback(listener.close)
        loop = Loop()
        # Every event is kept from now on: the rest may log something.
        history = History(
            config.state_dir,
            boot_id(),
            days=config.history_days,
            most_bytes=config.history_bytes,
        )
        sinks.append(history.note)
        mounts = TenantMounts(config.run_dir / "tenants", config.mount_namespace, SIZE_BYTES)
        state = build_state(config, loop, Threads.start(), mounts)
        history.name_of = state.ledger.name_of
        state.history, state.metrics_history = history, _metrics_history(state)
        ends.callback(history.close, _FINISH_SECONDS)
        ends.callback(sinks.remove, history.note)
        ends.callback(state.metrics_history.close)
        ends.callback(state.ledger.close)
        _serve(state, loop, listener)


def _serve(state: DaemonState, loop: Loop, listener: StartingSocket) -> None:
    stop, decide = threading.Event(), state.decide
    loader = DriverLoader(state)
    loader.load()
    _on_signals(loop, state)
    parts = compose(state, CheckpointClient(state.node.loaded, loader.excuse))
    freezer, control, servers = parts.freezer, parts.control, parts.servers
    # Every allocation is known before the first request.
    decide.run(lambda: _adopt(state, freezer))
    decide.run(servers.check)
    scheduler = SchedulerSync(state)
    decide.run(parts.queue.look)
    state.ledger.changed.listeners += (scheduler.changed, servers.changed, *parts.followers)
    parts.evictions.settle()
    scheduler.check()
    readers = Worker("read")
    parts.look_again(loop)
    end = partial(control.stop, number=signal.SIGTERM)
    limits = TimeLimits(state.ledger, state.freezing, partial(end, seconds=30, by="time-limit"))
    idle = {"pause": partial(control.pause, by="idle"), "kick": partial(end, seconds=10, by="idle")}
    loop.every(lambda: TIME_SECONDS, limits.look)
    server = ControlServer(listener, state, readers, parts.operations)
    again = (
        lambda: decide.submit(lambda: release.reconcile_tenants(state, freezer)),
        lambda: decide.submit(loader.load),
        lambda: decide.submit(servers.check),
        server.rebind_if_lost,
        scheduler.check,
        IdleHolders(state, idle).look,
        parts.evictions.look,
    )
    for job in again:
        loop.every(lambda: state.node.config.timing.reconcile_interval_seconds, job)
    loop.every(lambda: _RENEW_SECONDS, lambda: decide.submit(loader.measure_missing))
    watchdog = Watchdog(("decide", "freeze", "truth"), systemd.watchdog_seconds() or _FEED_SECONDS)
    beat = partial(watchdog.beat, "truth")
    sampling = SamplingLoop(state, loader, parts.audit, beat, scheduler.changed)
    threading.Thread(target=sampling.run, args=(stop,), name="truth", daemon=True).start()
    _renew_tree(state)
    log(
        "daemon-ready",
        version=gpushare.__version__,
        pid=os.getpid(),
        run_dir=str(state.node.config.run_dir),
        generation=state.ledger.generation,
    )
    _watch_threads(state, watchdog)
    # The objects of now stay: they need not be looked through for garbage again and again.
    gc.collect()
    gc.freeze()
    systemd.notify("READY=1")
    try:
        loop.run()
    finally:
        systemd.notify("STOPPING=1")
        server.stop_accepting()
        parts.evictions.close(_FINISH_SECONDS)
        # Every request that was acknowledged is answered. Those threads end first that have the
        # next ones do something.
        for thread in (state.creates, state.requests, state.freezing, state.decide, readers):
            thread.finish(_FINISH_SECONDS)
        loop.settle()
        server.close()
        scheduler.close(_FINISH_SECONDS)
        servers.close()
        stop.set()
        state.observed.sample_now.set()
        state.watch.close()
        state.mounts.close()
        log("daemon-stopped", tenants=len(state.tenants.pages))


def _adopt(state: DaemonState, freezer: Freezer) -> None:
    """Take over what an earlier daemon has left in the ledger.

    A tenant whose process has ended meanwhile is released by a job of the decide thread, which
    alone may use the ledger.
    """
    release.adopt_tenants(state, freezer)
    release.reconcile_tenants(state, freezer)
    scheduled.adopt(state.node, state.ledger)


def _renew_tree(state: DaemonState) -> None:
    """Have the tree of libraries mounted, now and later."""
    renew = partial(container_edits.renew_tree, state.node, state.ledger, state.mounts)
    state.names.submit(renew)
    state.loop.every(lambda: _RENEW_SECONDS, lambda: state.names.submit(renew))


def _watch_threads(state: DaemonState, watchdog: Watchdog) -> None:
    """Have the threads that everything waits for show that they move, and the watchdog fed."""
    every, period = state.loop.every, lambda: watchdog.period
    every(lambda: _REPORT_SECONDS, report_suppressed)
    every(period, lambda: state.decide.submit(lambda: watchdog.beat("decide")))
    every(period, lambda: state.freezing.submit(lambda: watchdog.beat("freeze")))
    every(period, lambda: watchdog.feed(systemd.notify))


def _lock(config: Config) -> int:
    """Return the lock that one daemon per run_dir holds; CannotStart where another has it."""
    for folder in (config.run_dir, config.state_dir):
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise CannotStart(f"{folder}: {error.strerror}; set run_dir and state_dir") from error
    status = config.run_dir.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:  # others could replace our socket
        raise CannotStart(f"{config.run_dir} can be written by others than root; chmod 755 it")
    fd = os.open(config.run_dir / wait_policy.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        wait_policy.take_lock(fd)
    except BlockingIOError:
        holder = os.pread(fd, 16, 0).decode(errors="replace").strip()
        os.close(fd)
        raise CannotStart(
            f"another gpushared (pid {holder or 'unknown'}) has {config.run_dir}; "
            "stop it first, or set run_dir"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _metrics_history(state: DaemonState) -> MetricsHistory:
    """Return what keeps the metrics history's process running, as soon as the loop does."""
    history = MetricsHistory(
        process_arguments(state.node.config, reload.read_gid(state.node.config))
    )
    state.loop.call(history.check)
    state.loop.every(lambda: state.node.config.timing.reconcile_interval_seconds, history.check)
    return history


def _on_signals(loop: Loop, state: DaemonState) -> None:
    """Have signals wake the loop; Python runs their handlers on this thread, between callbacks."""

    def stop(number: int, _frame: Any) -> None:
        log("signal-received", signal=signal.Signals(number).name)
        loop.stop()

    def reload_config() -> None:
        with suppress(reload.NotReloaded):  # it is in the log
            reload.reload_config(state)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGHUP, lambda *_: state.decide.submit(reload_config))
    signal.set_wakeup_fd(loop.signal_fd, warn_on_full_buffer=False)


if __name__ == "__main__":
    main()
