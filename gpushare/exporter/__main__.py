# SPDX-License-Identifier: Apache-2.0
"""`gpushare-exporter`: serves /metrics until SIGTERM."""

from __future__ import annotations

import argparse
import functools
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final

import gpushare
from gpushare import listen_address
from gpushare.client import DEFAULT_SOCKET
from gpushare.errors import UserError, exit_with
from gpushare.exporter import DEFAULT
from gpushare.exporter.aliases import COMPAT
from gpushare.exporter.exposition import expose, wants_openmetrics
from gpushare.exporter.metric_family import Snapshot, SnapshotSource
from gpushare.http_server import HttpRequest, HttpServer, Response, Work

_WELCOME: Final = b"gpushare-exporter: Prometheus metrics are at /metrics\n"
_RESTRICTED: Final = (
    "gpushare.yaml sets read_group, so not every user may read, and the exporter cannot identify "
    "clients on this address. Start gpushare-exporter with --token-file FILE or --listen "
    "unix:/PATH\n"
)
_PROTECT: Final = (
    f"Add --token-file FILE (clients then send that bearer token), or listen on {DEFAULT}"
)


class ExporterServer:
    """Answers requests for the metrics of a daemon."""

    def __init__(
        self,
        source: SnapshotSource,
        token_file: Path | None,
        *,
        open_to_all: bool,
        compat: Sequence[str] = (),
    ) -> None:
        self._source = source
        self._compat = compat
        self._token_file = token_file
        self._open_to_all = open_to_all
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, bool], tuple[Snapshot, Response]] = {}

    def answer(self, request: HttpRequest) -> Response | Work:
        """Return the response to a request, or how to make it."""
        if request.method not in {"GET", "HEAD"}:
            return Response(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"})
        refused = self._refused(request)
        if refused is not None:
            return refused
        if request.path == "/":
            return Response(body=_WELCOME)
        if request.path not in {"/metrics", "/rows"}:
            return Response(HTTPStatus.NOT_FOUND)
        return functools.partial(self._made, request.path, request.headers.get("accept", ""))

    def _made(self, path: str, accept: str) -> Response:
        """Return a response of the current figures; all clients get the same one."""
        snapshot, key = self._source.snapshot(), (path, wants_openmetrics(accept))
        with self._lock:
            known = self._kept.get(key)
            if known is None or known[0] is not snapshot:
                known = self._kept[key] = snapshot, self._of(snapshot, path, accept)
            return known[1]

    def _of(self, snapshot: Snapshot, path: str, accept: str) -> Response:
        if path == "/rows":
            rows = json.dumps(snapshot.document()).encode()
            return Response(body=rows, content_type="application/json")
        text, content_type = expose(snapshot, accept, self._compat)
        return Response(body=text, content_type=content_type)

    def _refused(self, request: HttpRequest) -> Response | None:
        if self._token_file is None:
            if self._open_to_all and listen_address.is_restricted(self._source.socket):
                return Response(HTTPStatus.FORBIDDEN, body=_RESTRICTED.encode())
            return None
        try:
            wanted = listen_address.read_token(self._token_file)
        except listen_address.BadToken as error:
            sys.stderr.write(f"gpushare-exporter: {error}\n")
            return Response(HTTPStatus.INTERNAL_SERVER_ERROR)
        if listen_address.is_authorized(request.headers, wanted):
            return None
        return Response(HTTPStatus.UNAUTHORIZED, headers={"WWW-Authenticate": "Bearer"})


def main() -> None:
    """Serve; exit status 0 after SIGTERM, that of the error otherwise."""
    arguments = _parser().parse_args()
    try:
        where = listen_address.parse_address(arguments.listen, DEFAULT)
        listen_address.refuse_open(where, _PROTECT, is_protected=arguments.token_file is not None)
        if arguments.token_file is not None:
            listen_address.read_token(arguments.token_file)
        listener = listen_address.listen(where)
    except UserError as error:
        exit_with(error, "gpushare-exporter")
    source = SnapshotSource(arguments.socket, arguments.node)
    site = ExporterServer(
        source, arguments.token_file, open_to_all=where.path is None, compat=arguments.compat
    )
    sys.stderr.write(f"gpushare-exporter: http://{where}/metrics of {source.socket}\n")
    try:
        _serve(listener, site)
    finally:
        if where.path is not None:
            where.path.unlink(missing_ok=True)


def _serve(listener: socket.socket, site: ExporterServer) -> None:
    server = HttpServer(listener, site.answer)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    server.serve()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpushare-exporter",
        description="Serves gpushared's metrics at /metrics, for Prometheus.",
        epilog="Example: gpushare-exporter --listen 0.0.0.0:10418 --token-file /etc/gpushare/token",
    )
    parser.add_argument(
        "--listen",
        metavar="ADDRESS",
        default=DEFAULT,
        help="HOST:PORT or unix:/PATH; all but loopback takes a token (default: %(default)s)",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="require the bearer token in FILE, which is read for each request",
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
        "--node",
        metavar="NAME",
        default="",
        help="value of the label node (default: $NODE_NAME, kubernetes.node of gpushare.yaml, or "
        "this host's name)",
    )
    parser.add_argument(
        "--compat",
        type=_compat,
        metavar="NAMES",
        default=(),
        help=f"also export under the names of other exporters: {', '.join(COMPAT)}",
    )
    parser.add_argument(
        "--version", action="version", version=f"gpushare-exporter {gpushare.__version__}"
    )
    return parser


def _compat(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(text.split(",")))
    unknown = [name for name in found if name not in COMPAT]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"{unknown[0]!r} is not one of {', '.join(COMPAT)}. Use, for example, "
            "--compat=hami,dcgm"
        )
    return found


if __name__ == "__main__":
    main()
