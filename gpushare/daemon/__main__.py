# SPDX-License-Identifier: Apache-2.0
"""`gpushared`: starts, serves until SIGTERM, and leaves every tenant running."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, Final

import gpushare
from gpushare import config as configuration
from gpushare.config import Config
from gpushare.daemon import privileges, startup
from gpushare.daemon.audit.rest import Rest
from gpushare.daemon.compute.schedule import Schedule
from gpushare.daemon.control import reload
from gpushare.daemon.life import release
from gpushare.daemon.log import detach, log
from gpushare.daemon.memory import lack
from gpushare.daemon.memory.lend import Lending
from gpushare.daemon.node import Node
from gpushare.daemon.service import systemd
from gpushare.daemon.service.door import Door
from gpushare.daemon.service.loop import Loop
from gpushare.daemon.service.pulse import Pulse
from gpushare.daemon.service.server import Server
from gpushare.daemon.service.worker import Worker
from gpushare.daemon.store import installations
from gpushare.errors import UserError
from gpushare.host.driver import ready
from gpushare.host.tree import Tree

_FINISH_SECONDS: Final = 5.0
_FEED_SECONDS: Final = 60.0  # where no watchdog asks: a thread that hangs is logged all the same
_SWEEP_SECONDS: Final = 600.0  # all of /proc is read, if there is anything to remove


def main() -> None:
    """Run the daemon; exit status 0 after SIGTERM, 1 when it cannot start, 2 for a bad call."""
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
    parser.add_argument("--check", action="store_true", help="check the configuration and exit")
    parser.add_argument(
        "--foreground", action="store_true", help="accepted for other daemons' habits: it always is"
    )
    parser.add_argument("--version", action="version", version=f"gpushared {gpushare.__version__}")
    arguments = parser.parse_args()
    if arguments.make_nodes:
        _make_nodes()
        return
    try:
        config = configuration.load(arguments.config)
        if not arguments.check:
            run(config)
    except UserError as error:
        sys.exit(f"gpushared: {error}")


def _make_nodes() -> None:
    """Make a driver that is installed ready for use; never a reason for gpushared not to start."""
    made = ready.make_ready(Tree())
    if made.ran or made.nodes:
        log("driver-made-ready", ran=made.ran, nodes=made.nodes)
    for why in made.problems:
        log("driver-not-ready", "warning", why=why)


def run(config: Config) -> None:
    """Serve until SIGTERM or SIGINT; UserError when it cannot start."""
    privileges.require_root()
    lock = startup.lock(config)
    os.umask(0o022)
    privileges.raise_descriptors()
    # Before any other thread is there: capabilities are each thread's own.
    _drop_privileges()
    # Who asks before there is anything to read again for does not end us.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    door = Door(config.socket, startup.read_gid(config))
    try:
        loop = Loop()
        node = startup.build(config, loop)
        try:
            _serve(config, node, loop, door)
        finally:
            node.ledger.close()
            if node.history is not None:
                detach(node.history.note)
                node.history.close(_FINISH_SECONDS)
    finally:
        door.close()
        os.close(lock)


def _serve(config: Config, node: Node, loop: Loop, door: Door) -> None:
    stop = threading.Event()
    _on_signals(loop, node)
    node.regroup = lambda gid: loop.call(lambda: door.regroup(gid))
    node.watch.ended = lambda key: node.decide.submit(lambda: release.process_ended(key, node))
    node.watch.lacks = lambda key, card, size: node.decide.submit(
        lambda: lack.heard(key, card, size, node)
    )
    # Everything that is promised is known before anybody can ask. A tenant whose process has ended
    # meanwhile is released by a job of the decide thread, which alone may use the ledger.
    node.decide.run(lambda: release.adopt(node))
    node.decide.run(lambda: release.reconcile(node))
    schedule = Schedule(node)
    node.shares_changed = schedule.changed
    schedule.check()
    lending = Lending(node)
    readers = Worker("read")
    server = Server(door, node, readers)
    again = (
        lambda: node.decide.submit(lambda: release.reconcile(node)),
        lambda: node.decide.submit(lambda: startup.load_driver_late(node)),
        server.rebind_if_lost,
        schedule.check,
    )
    for job in again:
        loop.every(lambda: node.config.timing.reconcile, job)
    pulse = Pulse(("decide", "truth"), systemd.watchdog_seconds() or _FEED_SECONDS)
    _start_thread("truth", lambda: _look(node, lending, stop, pulse))
    node.names.submit(lambda: installations.sweep(node))
    loop.every(lambda: _SWEEP_SECONDS, lambda: node.names.submit(lambda: installations.sweep(node)))
    log(
        "daemon-ready",
        version=gpushare.__version__,
        pid=os.getpid(),
        run_dir=str(config.run_dir),
        generation=node.ledger.generation,
    )
    loop.every(pulse.period, lambda: node.decide.submit(lambda: pulse.beat("decide")))
    loop.every(pulse.period, lambda: pulse.feed(systemd.notify))
    # What is there by now stays: it need not be looked through for garbage again and again.
    gc.collect()
    gc.freeze()
    systemd.notify("READY=1")
    try:
        loop.run()
    finally:
        systemd.notify("STOPPING=1")
        server.stop_accepting()
        node.decide.submit(node.freezer.end_all_turns)
        # Who was acknowledged is answered.
        node.decide.finish(_FINISH_SECONDS)
        node.freezer.thaw_turns()
        readers.finish(_FINISH_SECONDS)
        loop.settle()
        server.close()
        schedule.close(_FINISH_SECONDS)
        stop.set()
        node.audit.hurry.set()
        node.watch.close()
        node.mounts.close()
        log("daemon-stopped", tenants=len(node.tenants.pages))


def _look(node: Node, lending: Lending, stop: threading.Event, pulse: Pulse) -> None:
    """Look at the driver again and again; the truth thread."""
    rest = Rest(node)
    while True:
        hurried = node.audit.wait(rest.slower)
        pulse.beat("truth")
        if stop.is_set():
            return
        if node.driver is None or (not hurried and rest.look()):
            continue
        node.driver.truth.look()
        node.peaks.look(node.driver.truth.view)
        node.spending.look(node.driver.truth.view)
        node.audit.look(node.driver.truth.last)
        node.overuse.look()
        rest.note()
        if not node.driver.truth.view.stale:
            lending.again()


def _on_signals(loop: Loop, node: Node) -> None:
    """Have signals wake the loop; Python runs their handlers on this thread, between callbacks."""

    def stop(number: int, _frame: Any) -> None:
        log("signal", signal=signal.Signals(number).name)
        loop.stop()

    def read_again(_number: int, _frame: Any) -> None:
        node.decide.submit(lambda: reload.reload_quietly(node))

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGHUP, read_again)
    signal.set_wakeup_fd(loop.signal_fd, warn_on_full_buffer=False)


def _drop_privileges() -> None:
    try:
        privileges.drop()
    except OSError as error:
        log("privileges-kept", "warning", error=str(error))


def _start_thread(name: str, run_it: Any) -> None:
    threading.Thread(target=run_it, name=name, daemon=True).start()


if __name__ == "__main__":
    main()
