# SPDX-License-Identifier: Apache-2.0
"""`gpushare-exporter`: serves /metrics until SIGTERM."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import gpushare
from gpushare.client import DEFAULT_SOCKET
from gpushare.errors import UserError
from gpushare.exporter import NO_LIBRARY, address, token
from gpushare.exporter.compat import COMPAT
from gpushare.exporter.http import Request, Response, Server
from gpushare.exporter.snapshot import Source

_WELCOME: Final = b"gpushare-exporter: /metrics is for Prometheus\n"
_RESTRICTED: Final = (
    "gpushare.yaml has a read_group: not everybody on this machine may ask, and whoever connects "
    "here is not known. Give gpushare-exporter --token-file FILE, or --listen unix:/PATH\n"
)


class Site:
    """What there is to ask for, and of whom."""

    def __init__(
        self,
        source: Source,
        token_file: Path | None,
        *,
        open_to_all: bool,
        compat: Sequence[str] = (),
    ) -> None:
        self._source = source
        self._compat = compat
        self._token_file = token_file
        self._open_to_all = open_to_all

    def answer(self, request: Request) -> Response:
        """Return the answer to a request."""
        if request.method not in {"GET", "HEAD"}:
            return Response(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"})
        refused = self._refused(request)
        if refused is not None:
            return refused
        if request.path == "/":
            return Response(body=_WELCOME)
        if request.path != "/metrics":
            return Response(HTTPStatus.NOT_FOUND)
        from gpushare.exporter.exposition import expose  # noqa: PLC0415 - main has checked it

        text, content_type = expose(
            self._source.snapshot(), request.headers.get("accept", ""), self._compat
        )
        return Response(body=text, content_type=content_type)

    def _refused(self, request: Request) -> Response | None:
        if self._token_file is None:
            if self._open_to_all and address.is_restricted(self._source.socket):
                return Response(HTTPStatus.FORBIDDEN, body=_RESTRICTED.encode())
            return None
        try:
            wanted = token.read(self._token_file)
        except token.BadToken as error:
            sys.stderr.write(f"gpushare-exporter: {error}\n")
            return Response(HTTPStatus.INTERNAL_SERVER_ERROR)
        if token.is_shown(request.headers.get("authorization", ""), wanted):
            return None
        return Response(HTTPStatus.UNAUTHORIZED, headers={"WWW-Authenticate": "Bearer"})


def main() -> None:
    """Serve; exit status 0 after SIGTERM, 1 when it cannot, 2 for a bad call."""
    arguments = _parser().parse_args()
    try:
        _check_library()
        where = address.parse(arguments.listen)
        address.refuse_open(where, arguments.token_file)
        if arguments.token_file is not None:
            token.read(arguments.token_file)
        listener = address.listen(where)
    except UserError as error:
        sys.exit(f"gpushare-exporter: {error}")
    source = Source(arguments.socket, arguments.node)
    site = Site(
        source, arguments.token_file, open_to_all=where.path is None, compat=arguments.compat
    )
    sys.stderr.write(f"gpushare-exporter: http://{where}/metrics of {source.socket}\n")
    try:
        _serve(listener, site)
    finally:
        if where.path is not None:
            where.path.unlink(missing_ok=True)


def _serve(listener: socket.socket, site: Site) -> None:
    def stop(_number: int, _frame: Any) -> None:
        sys.exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    Server(listener, site.answer).serve()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpushare-exporter",
        description="Serves what gpushared says in figures as /metrics, for Prometheus.",
        epilog="Example: gpushare-exporter --listen 0.0.0.0:10418 --token-file /etc/gpushare/token",
    )
    parser.add_argument(
        "--listen",
        metavar="ADDRESS",
        default=address.DEFAULT,
        help="HOST:PORT or unix:/PATH; all but loopback takes a token (default: %(default)s)",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="answer only those who show the bearer token in FILE, which is read each time",
    )
    parser.add_argument(
        "--socket",
        type=Path,
        metavar="PATH",
        default=Path(os.environ.get("GPUSHARE_SOCKET", DEFAULT_SOCKET)),
        help="gpushared's control socket, else GPUSHARE_SOCKET, else /run/gpushare/control.sock",
    )
    parser.add_argument(
        "--node",
        metavar="NAME",
        default=socket.gethostname(),
        help="the label node of every series (default: this host's name)",
    )
    parser.add_argument(
        "--compat",
        type=_compat,
        metavar="NAMES",
        default=(),
        help=f"also the names that others have for the same figures: {', '.join(COMPAT)}",
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
            f"{unknown[0]!r} is none of {', '.join(COMPAT)}; write e.g. --compat=hami,dcgm"
        )
    return found


def _check_library() -> None:
    try:
        import prometheus_client  # noqa: F401, PLC0415 - it is an extra
    except ImportError as error:
        raise UserError(NO_LIBRARY) from error


if __name__ == "__main__":
    main()
