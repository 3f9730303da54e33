# SPDX-License-Identifier: Apache-2.0
"""The addresses of the pages and of what they show, and the process that serves them."""

from __future__ import annotations

import contextlib
import math
import signal
import ssl
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from gpushare.client import RequestRefused, UnknownTenant
from gpushare.dashboard import DEFAULT, reports
from gpushare.dashboard.access import AccessGuard, DashboardToken, share_with_readers
from gpushare.dashboard.live import LiveNode
from gpushare.dashboard.series import BadGraph, MetricGraph, graph, subjects, time_range
from gpushare.errors import ErrorCode, UserError
from gpushare.events import EVENTS
from gpushare.history.reader import HistoryReader
from gpushare.listen_address import Address, listen, refuse_open
from gpushare.prices import Prices

if TYPE_CHECKING:
    from starlette.requests import Request

    from gpushare.protocol import HistoryEvent

STATIC: Final = Path(__file__).parent / "static"
_PROTECT: Final = (
    "Add --token-file FILE, or --client-ca, --tls-certificate and --tls-key for mutual TLS, or "
    f"listen on {DEFAULT}"
)
_MOST_EVENTS: Final = 500
_STOP_SECONDS: Final = 2
_STATUS: Final = {
    ErrorCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    ErrorCode.FORBIDDEN: HTTPStatus.FORBIDDEN,
    ErrorCode.USAGE: HTTPStatus.BAD_REQUEST,
}


@dataclass(frozen=True)
class DashboardOptions:
    """Where the dashboard listens, what it shows, and which clients it answers."""

    listen: Address
    socket: Path
    history: Path
    token_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    host_names: tuple[str, ...] = ()
    prices: Prices = field(default_factory=Prices)

    @property
    def is_mutual(self) -> bool:
        """Whether every client proves itself with a certificate."""
        return self.client_ca is not None

    def check(self) -> None:
        """Raise UserError if the options contradict each other, or leave names open."""
        if (self.certificate is None) != (self.key is None):
            raise UserError("--tls-certificate and --tls-key need each other", code=ErrorCode.USAGE)
        if self.is_mutual and self.certificate is None:
            raise UserError(
                "--client-ca needs --tls-certificate and --tls-key", code=ErrorCode.USAGE
            )
        refuse_open(
            self.listen, _PROTECT, is_protected=self.token_file is not None or self.is_mutual
        )


class DashboardPages:
    """Answers the requests of the pages."""

    def __init__(
        self,
        live: LiveNode,
        history: Path,
        prices: Prices,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._live = live
        self._history = history
        self._prices = prices
        self._clock = clock

    def app(self, token: DashboardToken | None, names: tuple[str, ...] = ()) -> Starlette:
        """Return the ASGI application; without a token, every client may read."""
        api = {
            "now": self.now,
            "subjects": self.subjects,
            "series": self.series,
            "series.csv": self.series_csv,
            "why": self.why,
            "events": self.events,
            "reports": self.reports,
            "report": self.report,
        }
        return Starlette(
            routes=[
                *(Route(f"/api/{name}", endpoint) for name, endpoint in api.items()),
                Mount("/", StaticFiles(directory=STATIC, html=True)),
            ],
            middleware=[
                Middleware(AccessGuard, token=token, names=names),
                Middleware(GZipMiddleware, minimum_size=1024),
            ],
            exception_handlers={UserError: _refused, BadGraph: _refused},
        )

    def now(self, _request: Request) -> Response:
        """The last answer of gpushared."""
        return JSONResponse(self._live.now())

    def subjects(self, request: Request) -> Response:
        """The cards and containers that the history has in a range."""
        since, until = _number(request, "since"), _number(request, "until")
        with HistoryReader(self._history) as reader:
            return JSONResponse(subjects(reader, since, until))

    def series(self, request: Request) -> Response:
        """The data of a graph."""
        return JSONResponse(self._graph(request).document())

    def series_csv(self, request: Request) -> Response:
        """The same for a spreadsheet."""
        return Response(
            self._graph(request).csv(),
            media_type="text/csv",
            headers={"Content-Disposition": 'attachment; filename="gpushare.csv"'},
        )

    def why(self, request: Request) -> Response:
        """A container's memory by kind."""
        return JSONResponse(self._live.client.why(request.query_params.get("name", "")))

    def events(self, request: Request) -> Response:
        """The last events of a container or card, or of the node."""
        since, until = _number(request, "since"), _number(request, "until")
        name = request.query_params.get("name", "")
        try:
            found = self._live.client.history(name, since)
            rows = [row for row in found if row["time"] < until]
        except UnknownTenant:
            rows = []
        return JSONResponse(
            [{**row, "text": EVENTS.get(row["event"], "")} for row in rows[-_MOST_EVENTS:]]
        )

    def reports(self, _request: Request) -> Response:
        """The names of the reports."""
        return JSONResponse(reports.catalogue())

    def report(self, request: Request) -> Response:
        """A report, as the page shows it or in a `format` of `gpushare report`."""
        query = request.query_params
        name, form = query.get("name", ""), query.get("format", "")
        if name not in reports.REPORTS or form not in {"", *reports.MEDIA}:
            raise BadGraph("there is no such report or format")
        since, until = _number(request, "since"), _number(request, "until")
        chosen = {part: query.get(part, "") for part in reports.FILTERS}

        def events(names: Collection[str]) -> list[HistoryEvent]:
            return [
                one
                for one in self._live.client.history("", since)
                if one["event"] in names and one["time"] < until and source.has(one)
            ]

        with HistoryReader(self._history) as reader:
            source = reports.FilteredSource(
                reader, since, until, events, self._prices, filter=reports.ReportFilter(**chosen)
            )
            table = reports.make_report(name, source, query.get("by", ""))
        if not form:
            return JSONResponse(reports.page(table))
        tail, media = reports.MEDIA[form]
        place = f'attachment; filename="gpushare-{name}.{tail}"'
        return Response(
            reports.FORMATS[form](table),
            media_type=media,
            headers={"Content-Disposition": place},
        )

    def _graph(self, request: Request) -> MetricGraph:
        asked = time_range(_number(request, "since"), _number(request, "until"), self._clock())
        wanted = request.query_params.getlist("subject")
        figures = request.query_params.getlist("figure")
        with HistoryReader(self._history) as reader:
            return graph(reader, wanted, figures, asked)


def _number(request: Request, name: str) -> float:
    try:
        value = float(request.query_params.get(name, ""))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadGraph(f"{name} must be a time in seconds since the epoch")
    return value


def _refused(_request: Request, error: Exception) -> Response:
    if isinstance(error, RequestRefused):
        status = HTTPStatus.TOO_MANY_REQUESTS
    elif isinstance(error, UserError):
        status = _STATUS.get(error.code, HTTPStatus.SERVICE_UNAVAILABLE)
    else:
        status = HTTPStatus.BAD_REQUEST
    return JSONResponse({"error": str(error)}, status)


@contextlib.contextmanager
def opened(options: DashboardOptions) -> Iterator[tuple[uvicorn.Server, list[Any], str]]:
    """Listen; yield the server, its sockets, and the address to open in a browser."""
    options.check()
    is_socket = options.listen.path is not None
    token = None if is_socket or options.is_mutual else DashboardToken(options.token_file)
    if token is not None:
        token.read()  # a bad file is refused before the first request
    pages = DashboardPages(LiveNode(options.socket), options.history, options.prices)
    config = uvicorn.Config(
        pages.app(token, options.host_names),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_STOP_SECONDS,
        ws="none",
        lifespan="off",
        ssl_certfile=options.certificate,
        ssl_keyfile=str(options.key) if options.key else None,
        ssl_ca_certs=str(options.client_ca) if options.client_ca else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if options.is_mutual else ssl.CERT_NONE,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"--tls-certificate {options.certificate}: {error}") from error
    listener = listen(options.listen)
    try:
        if options.listen.path is not None:
            share_with_readers(options.listen.path, options.socket)
        yield uvicorn.Server(config), [listener], _address(options, listener, token)
    finally:
        listener.close()
        if options.listen.path is not None:
            options.listen.path.unlink(missing_ok=True)


def _address(options: DashboardOptions, listener: Any, token: DashboardToken | None) -> str:
    """Return the address; one with the token of this process shows it after a #."""
    if options.listen.path is not None:
        return str(options.listen)
    port = listener.getsockname()[1]
    where = Address(host=options.listen.host, port=port)
    scheme = "https" if options.certificate else "http"
    shown = f"#token={token.read().decode()}" if token and options.token_file is None else ""
    return f"{scheme}://{where}/{shown}"


def serve(options: DashboardOptions, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `ready` gets the address."""
    with opened(options) as (server, listeners, address):

        def stop(_number: int, _frame: Any) -> None:
            # An exception could be raised where Python ignores it, for example in an import.
            server.should_exit = True

        signal.signal(signal.SIGTERM, stop)
        ready(address)
        server.run(sockets=listeners)
