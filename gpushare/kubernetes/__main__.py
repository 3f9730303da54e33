# SPDX-License-Identifier: Apache-2.0
"""`gpushare-node`: makes this node's shares known to Kubernetes, until SIGTERM."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from contextlib import ExitStack, closing, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

import gpushare
from gpushare.client import DEFAULT_SOCKET, Client
from gpushare.errors import UserError, exit_with
from gpushare.kubernetes import StatusLog, check_libraries, templates
from gpushare.kubernetes.api.claims import ClaimFollower, ClaimReader
from gpushare.kubernetes.api.credentials import BadCredentials, find_credentials
from gpushare.kubernetes.api.reporter import NodeReporter
from gpushare.kubernetes.api.server import ApiServer
from gpushare.kubernetes.cards import CardFollower, SchedulableCard
from gpushare.protocol.kubernetes import MODES, is_served

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpushare.protocol.kubernetes import NodeMode

TICK_SECONDS: Final = 1.0
MODE_TICKS: Final = 10  # `gpushare config reload` changes the mode
ANSWER_SECONDS: Final = 5.0
_ENDS: Final = (signal.SIGTERM, signal.SIGINT)


class KubeletPlugin(Protocol):
    """One route by which the kubelet hands out shares."""

    @property
    def is_registered(self) -> bool:
        """Whether the kubelet has accepted it."""

    def update(self, cards: tuple[SchedulableCard, ...]) -> None:
        """Take the cards as gpushared reports them."""

    def step(self) -> None:
        """Do what is due: register, and register again."""

    def close(self) -> None:
        """Leave nothing in the kubelet's folders."""


def main() -> None:
    """Serve, or remove; exit status 0 after SIGTERM, that of the error otherwise."""
    arguments = _parser().parse_args()
    log = StatusLog()
    client = Client(arguments.socket, ANSWER_SECONDS, start_seconds=0)
    try:
        if arguments.remove:
            with closing(ApiServer(find_credentials(arguments.kubeconfig))) as api:
                _reporter(api, client, arguments, log).remove()
            return
        if arguments.templates:
            _make_templates(arguments, log)
        if arguments.ready_file is not None:
            arguments.ready_file.unlink(missing_ok=True)
        # Before any thread exists, so that the main thread alone waits for them.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
        check_libraries()
        while (mode := _mode(client, log)) is not None:
            log.note("mode", f"kubernetes.mode is {mode}")
            with ExitStack() as ended:
                plugins = _plugins(mode, arguments, client, log, ended)
                follower = CardFollower(client, log)
                if not _run(mode, client, follower, plugins, arguments.ready_file):
                    return
    except UserError as error:
        exit_with(error, "gpushare-node")


def _make_templates(arguments: argparse.Namespace, log: StatusLog) -> NoReturn:
    """Make templates until SIGTERM, which ends any wait for the API server too."""
    for number in _ENDS:
        signal.signal(number, lambda *_: sys.exit())
    api = ApiServer(
        find_credentials(arguments.kubeconfig),
        answer_seconds=templates.ANSWER_SECONDS,
        patience_seconds=0,  # it repeats by namespace
    )
    templates.serve(api, log, arguments.node)


def _mode(client: Client, log: StatusLog) -> NodeMode | None:
    """Return the node's mode once gpushared reports it; None after SIGTERM."""
    while True:
        try:
            return client.status()["kubernetes_mode"]
        except UserError as error:
            log.note("gpushared", str(error))
        if signal.sigtimedwait(_ENDS, TICK_SECONDS) is not None:
            return None


def _plugins(
    mode: NodeMode,
    arguments: argparse.Namespace,
    client: Client,
    log: StatusLog,
    ended: ExitStack,
) -> list[KubeletPlugin]:
    """Start what the mode needs, which `ended` ends; return the plugins of the kubelet."""
    api = _api_server(mode, arguments, log)
    reporter = None
    if api is not None:
        reporter = _reporter(api, client, arguments, log)
        ended.callback(reporter.close)
    if not is_served(mode, arguments.chart_mode):
        if reporter is not None:
            with suppress(UserError):
                reporter.configure()  # a label may have set it
        raise UserError(f"this pod has the permissions of {arguments.chart_mode}, not of {mode}")
    if mode != "annotations" and not arguments.kubelet_dir.is_dir():
        # The unit may write where the folder was at its start.
        raise UserError(f"there is no {arguments.kubelet_dir}: start the kubelet first")
    if reporter is not None:
        reporter.start()
    plugins: list[KubeletPlugin] = []
    if mode != "dra" and client.claims():
        from gpushare.kubernetes.kubelet.dra_plugin import (  # noqa: PLC0415 - it needs them
            ClaimsOfEarlierMode,
        )

        plugins.append(
            ClaimsOfEarlierMode(
                arguments.kubelet_dir, arguments.node, client, log, os.environ.get("POD_UID", "")
            )
        )
    if mode == "plugin":
        from gpushare.kubernetes.kubelet import (  # noqa: PLC0415 - they need the libraries
            device_plugin,
            memory_units,
        )

        resource = memory_units.memory_resource(arguments.resource, arguments.unit)
        folder = arguments.kubelet_dir / "device-plugins"
        plugins.append(device_plugin.DevicePlugin(folder, resource, client, log))
    elif mode == "dra":
        from gpushare.kubernetes.kubelet.dra_plugin import (  # noqa: PLC0415 - it needs them
            DraPlugin,
        )

        assert api is not None
        assert reporter is not None
        claims = ClaimReader(api)
        follower = ClaimFollower(api, claims, client, log)
        ended.callback(follower.close)
        plugins.append(
            DraPlugin(
                arguments.kubelet_dir,
                arguments.node,
                claims,
                client,
                follower,
                log,
                registered=reporter.register,
                pod_uid=os.environ.get("POD_UID", ""),
            )
        )
    for plugin in plugins:
        ended.callback(plugin.close)
    return plugins


def _reporter(
    api: ApiServer, client: Client, arguments: argparse.Namespace, log: StatusLog
) -> NodeReporter:
    return NodeReporter(api, client, arguments.node, log, arguments.chart_mode)


def _api_server(mode: NodeMode, arguments: argparse.Namespace, log: StatusLog) -> ApiServer | None:
    """Return a client of the API server; None without credentials, where they are optional."""
    try:
        return ApiServer(find_credentials(arguments.kubeconfig))
    except BadCredentials as error:
        if mode == "dra" or arguments.kubeconfig is not None:
            raise
        log.note("api", f"the node gets no labels and its pods no events: {error}")
        return None


def _run(
    mode: NodeMode,
    client: Client,
    follower: CardFollower,
    plugins: Sequence[KubeletPlugin],
    ready: Path | None,
) -> bool:
    """Serve until SIGTERM, or until the node has another mode; return whether it has.

    `ready` is created once the kubelet has registered what there is to register.
    """
    for tick in count(1):
        if tick % MODE_TICKS == 0 and _has_changed(mode, client):
            return True
        cards = follower.poll() if plugins else None
        for plugin in plugins:
            if cards is not None:
                plugin.update(cards)
            plugin.step()
        if ready is not None and all(plugin.is_registered for plugin in plugins):
            ready.touch()
            ready = None
        if signal.sigtimedwait(_ENDS, TICK_SECONDS) is not None:
            break
    return False


def _has_changed(mode: NodeMode, client: Client) -> bool:
    try:
        return client.status()["kubernetes_mode"] != mode
    except UserError:
        return False  # it restarts


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpushare-node",
        description="Makes the GPU shares of this node known to Kubernetes.",
        epilog="Example: gpushare-node --unit 256MiB",
    )
    parser.add_argument(
        "--resource",
        metavar="NAME",
        default="",
        help="name of the device plugin's resource (default: gpushare.io/memory-gib, or the name "
        "of the unit). The units of aliyun.com/gpu-mem and tencent.com/vcuda-memory are known",
    )
    parser.add_argument(
        "--unit",
        metavar="SIZE",
        default="",
        help="memory that one of the resource stands for, for example 256MiB (default: 1GiB)",
    )
    parser.add_argument(
        "--kubelet-dir",
        type=Path,
        metavar="DIR",
        default=Path("/var/lib/kubelet"),
        help="the kubelet's root directory (default: %(default)s)",
    )
    parser.add_argument(
        "--node",
        metavar="NAME",
        default=os.environ.get("NODE_NAME", socket.gethostname().lower()),
        help="name of this node in the cluster (default: $NODE_NAME, otherwise this host's name)",
    )
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="credentials for the API server (default: the pod's service account, otherwise "
        "/etc/gpushare/kubeconfig)",
    )
    parser.add_argument(
        "--chart-mode",
        choices=MODES,
        default="",
        help="the mode whose folders and permissions this pod has; a node label that sets another "
        "one is refused (default: all)",
    )
    parser.add_argument(
        "--ready-file",
        type=Path,
        metavar="FILE",
        help="create FILE once the kubelet has registered this node's shares",
    )
    parser.add_argument(
        "--templates",
        action="store_true",
        help="make the ResourceClaimTemplates gpushare-MEMORY-CORES-CARDS that waiting pods of the "
        "cluster name, and nothing else. It needs no GPU and no gpushared",
    )
    parser.add_argument(
        "--remove",
        action="store_true",
        help="delete the node's labels and ResourceSlices, which otherwise stay, and exit",
    )
    parser.add_argument(
        "--socket",
        type=Path,
        metavar="PATH",
        default=Path(os.environ.get("GPUSHARE_SOCKET", DEFAULT_SOCKET)),
        help="control socket of gpushared (default: $GPUSHARE_SOCKET, otherwise "
        "/run/gpushare/control.sock)",
    )
    parser.add_argument(
        "--version", action="version", version=f"gpushare-node {gpushare.__version__}"
    )
    return parser


if __name__ == "__main__":
    main()
