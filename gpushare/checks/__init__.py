# SPDX-License-Identifier: Apache-2.0
"""The checks of `gpushare doctor`: each looks at one thing and says how to put it right.

A check never changes anything, needs no root, and says "not known" rather than guess.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import gpushare
from gpushare import config
from gpushare.checks import configuration, driver, engines, installation, machine, scheduler
from gpushare.checks.check import Check
from gpushare.client import DaemonError, DaemonUnreachable, Refused
from gpushare.engines.engine import ENGINES
from gpushare.host import cgroups

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.client import Client
    from gpushare.protocol import Status

__all__ = ["Check", "run"]


def run(client: Client, root: Path = Path("/")) -> Iterator[Check]:
    """Yield every check's finding, the daemon first: it knows the driver best.

    `root` is where the files that tell the kind of machine are.
    """
    status: Status | None = None
    try:
        status = client.status()
    except (DaemonUnreachable, DaemonError, Refused) as error:
        yield Check("fail", f"daemon: {error}")
        yield from scheduler.left_alone(client.path.parent, root / "proc/net/unix")
    else:
        yield from _daemon(status)
    file = Path(status["config"]) if status and status["config"] else None
    if status is None and configuration.simulated(file):
        yield Check("ok", "simulated driver: as configured")
    else:
        yield from driver.of_host(status)
    yield from driver.placeholders()
    yield from configuration.of_file(file)
    copies = installation.used(status)
    yield from installation.of_copies(copies)
    if status is not None and _private(status):
        yield Check(
            "ok",
            f"{', '.join(ENGINES)}: this machine's are not looked at, for gpushared is not its own",
        )
    else:
        yield from engines.of_machine(copies.launcher if copies else None)
    yield from machine.of_machine(root)
    yield _cgroups(cgroups.layout(cgroups.mountinfo()))
    if status is not None:
        yield from _without_gpu(client)


def _daemon(status: Status) -> Iterator[Check]:
    yield Check("ok", f"gpushared {status['version']}, pid {status['pid']}, {status['run_dir']}")
    if status["version"] != gpushare.__version__:
        yield Check(
            "warn",
            f"gpushared is {status['version']}, this command {gpushare.__version__}",
            "systemctl restart gpushared",
        )
    if status["scheduler"]:
        yield Check("ok", f"scheduler, pid {status['scheduler']}: shares of compute are held")
    yield from (Check("warn", warning) for warning in status["warnings"])


def _private(status: Status) -> bool:
    """Whether another gpushared than the machine's answers (--socket, GPUSHARE_SOCKET).

    Its containers come from engines that were started for it; where they are configured, only who
    started them knows.
    """
    machines = status["config"] == str(config.DEFAULT_FILE)
    return not machines and status["run_dir"] != str(config.Config().run_dir)


def _cgroups(layout: str) -> Check:
    if layout == "hybrid":
        return Check(
            "warn",
            "cgroup: v1 and v2 side by side; crun refuses that, runc does not",
            "boot with systemd.unified_cgroup_hierarchy=1",
        )
    if layout == "none":
        return Check("fail", "cgroup: no hierarchy is mounted", "mount cgroup2 at /sys/fs/cgroup")
    return Check("ok", f"cgroup {layout}")


def _without_gpu(client: Client) -> Iterator[Check]:
    for tenant in client.tenants(everything=True):
        if tenant["state"] == "none":
            name = tenant["name"] or tenant["id"][:12]
            yield Check("warn", f"container {name} has no GPU", tenant["why"])
