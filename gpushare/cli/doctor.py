# SPDX-License-Identifier: Apache-2.0
"""`gpushare doctor`: check this machine and suggest fixes."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

import gpushare
from gpushare import checks, config
from gpushare.checks import Check, kubernetes
from gpushare.cli import session as shared
from gpushare.cli.status import is_remote
from gpushare.cli.text import printable
from gpushare.client import DaemonError, DaemonUnreachable, RequestRefused
from gpushare.engines import ENGINES
from gpushare.errors import ExitStatus, UserError
from gpushare.host import cgroups, init_system
from gpushare.kubernetes.api.credentials import DEFAULT_KUBECONFIG, find_credentials
from gpushare.kubernetes.api.server import ApiServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpushare.cli.session import Session
    from gpushare.client import Client
    from gpushare.protocol import DaemonStatus

IN_POD: Final = (
    "kubectl -n gpushare-system exec POD -c gpushare-node -- gpushare doctor --k8s, "
    "with the pod of gpushare-node on this node"
)
COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}


@shared.command("doctor")
@click.option("--k8s", is_flag=True, help="Check this machine as a node of a Kubernetes cluster.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help=f"Kubeconfig for --k8s. Default: {DEFAULT_KUBECONFIG}, or a pod's service account.",
)
@click.option(
    "--node",
    metavar="NAME",
    default=lambda: os.environ.get("NODE_NAME", socket.gethostname()),
    help="Name of this node in the cluster. Default: $NODE_NAME, otherwise this host's name.",
)
@click.option(
    "--bundle",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write what a bug report needs to a new FILE, a .tar.gz. Best used with sudo.",
)
def command(
    session: Session,
    k8s: bool,
    kubeconfig: Path | None,
    node: str,
    bundle: Path | None,
) -> None:
    """Check this machine and suggest fixes.

    With --k8s, only what Kubernetes needs is checked: the kubelet, containerd, the sockets of
    gpushare-node, and what the cluster has of this node.

    With --bundle, the results go into an archive with the versions, the configuration, the cards,
    the containers, the history of a week, and the logs of gpushared, the launcher and the driver.
    What is not available is listed in its README.txt.

    The exit status is 4 if a check fails. Warnings do not change it. With --bundle, it is 0 if the
    archive was written.
    """
    run = functools.partial(_kubernetes, kubeconfig=kubeconfig, node=node) if k8s else run_checks
    if bundle is not None:
        _write_bundle(session, bundle, run)
        return
    checks = run(session.client)
    checks_done = []
    for check in checks:
        checks_done.append(check)
        if not session.json:
            word = click.style(f"{check.level:<6}", fg=COLOURS[check.level])
            fix = f"; {check.fix}" if check.fix else ""
            click.echo(word + printable(check.text + fix))
    if session.json:
        session.show([asdict(check) for check in checks_done], str)
    if any(check.level == "fail" for check in checks_done):
        click.get_current_context().exit(ExitStatus.DEGRADED)


def _write_bundle(session: Session, path: Path, run: Callable[[Client], Iterator[Check]]) -> None:
    # Not at the top: the checks need neither archives nor users.
    from gpushare.cli import bundle  # noqa: PLC0415

    report = bundle.collect(session.socket, run)
    bundle.write(report, path)
    lines = [f"{path}: check its content before you attach it to a bug report"]
    lines += [f"  without {', '.join(names)}: {why}" for why, names in report.reasons.items()]
    data = {"file": str(path), "parts": list(report.parts), "missing": dict(report.missing)}
    session.show(data, lambda: "\n".join(map(printable, lines)))


def run_checks(client: Client) -> Iterator[Check]:
    """Yield the result of every check, the daemon first: it has the driver's current state."""
    status: DaemonStatus | None = None
    try:
        status = client.status()
    except (DaemonUnreachable, DaemonError, RequestRefused) as error:
        yield Check("fail", f"daemon: {error}")
        yield from checks.check_orphaned_scheduler(client.path.parent, Path("/proc/net/unix"))
    else:
        yield from _daemon(status)
    file = Path(status["config"]) if status and status["config"] else None
    if status is None and checks.is_simulated(file):
        yield Check("ok", "simulated driver: as configured")
    else:
        yield from checks.check_driver(status, required=not checks.has_remote_servers(file))
    yield from checks.check_placeholders()
    yield from checks.check_configuration(file)
    copies = checks.used_installation(status)
    yield from checks.check_installation(copies)
    if status is not None and _private(status):
        yield Check(
            "ok",
            f"{', '.join(ENGINES)}: not checked: this gpushared is not the machine's own",
        )
    else:
        yield from checks.check_engines(copies.launcher if copies else None)
    yield from checks.check_machine()
    yield _cgroups(cgroups.layout(cgroups.mountinfo()))
    if status is not None:
        yield from checks.check_mps(client.cards(), status["warnings"])
        yield from _without_gpu(client)


def _kubernetes(client: Client, kubeconfig: Path | None, node: str) -> Iterator[Check]:
    """Yield the checks of a node; its mode is gpushared's, otherwise that of annotations.

    On a node of the chart, only the pod of gpushare-node has credentials.
    """
    is_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    by_chart = is_pod or kubernetes.is_of_chart(config.DEFAULT_FILE)
    facts = kubernetes.NodeFacts("annotations", by_chart=by_chart)
    try:
        status = client.status()
    except (DaemonUnreachable, DaemonError, RequestRefused) as error:
        yield Check("fail", f"daemon: {error}")
    else:
        settings = status["node_settings"] if status["accepts_node_labels"] else None
        mode = str(status.get("kubernetes_mode", facts.mode))
        facts = replace(facts, mode=mode, settings=settings)
    try:
        api = ApiServer(find_credentials(kubeconfig), patience_seconds=0)
    except UserError as error:
        fix = IN_POD if by_chart else ""
        yield Check("warn", f"API server: not checked: {error}", fix)
        yield from kubernetes.check_node(facts, None)
        return
    with contextlib.closing(api):
        yield from kubernetes.check_cluster(api, node.lower(), facts)


def _daemon(status: DaemonStatus) -> Iterator[Check]:
    yield Check("ok", f"gpushared {status['version']}, pid {status['pid']}, {status['run_dir']}")
    if status["version"] != gpushare.__version__:
        yield Check(
            "warn",
            f"gpushared is {status['version']}, this command {gpushare.__version__}",
            init_system.advice("systemctl restart gpushared"),
        )
    if status["scheduler_pid"]:
        yield Check("ok", f"scheduler, pid {status['scheduler_pid']}: enforces compute shares")
    fault = status["eviction_fault"]
    if status["driver_version"]:
        yield Check("ok", f"evictions: not available: {fault}" if fault else "evictions: available")
    yield from (Check("warn", warning) for warning in status["warnings"])


def _private(status: DaemonStatus) -> bool:
    """Whether this is not the machine's own gpushared (--socket, GPUSHARE_SOCKET).

    Its containers come from engines that were started for it, with unknown configuration files.
    """
    machines = status["config"] == str(config.DEFAULT_FILE)
    return not machines and status["run_dir"] != str(config.Config().run_dir)


def _cgroups(layout: str) -> Check:
    if layout == "hybrid":
        return Check(
            "warn",
            "cgroup: hybrid hierarchy (v1 and v2), which runc supports and crun does not",
            "boot with systemd.unified_cgroup_hierarchy=1",
        )
    if layout == "none":
        return Check("fail", "cgroup: no hierarchy is mounted", "mount cgroup2 at /sys/fs/cgroup")
    return Check("ok", f"cgroup {layout}")


def _without_gpu(client: Client) -> Iterator[Check]:
    for tenant in client.tenants(everything=True):
        if tenant["state"] == "none" and not is_remote(tenant):
            name = tenant["name"] or tenant["id"][:12]
            yield Check("warn", f"container {name} has no GPU", tenant["reason"])
