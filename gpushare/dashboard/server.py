# SPDX-License-Identifier: Apache-2.0
"""The addresses of the pages and of what they show, and the process that serves them."""

from __future__ import annotations

import collections
import contextlib
import gzip
import math
import signal
import socket
import ssl
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpushare.client import RequestRefused, UnknownTenant
from gpushare.dashboard import DEFAULT, access, reports, series
from gpushare.dashboard.live import LiveNode
from gpushare.errors import ErrorCode, UserError
from gpushare.events import EVENTS
from gpushare.history.reader import TOO_LONG, HistoryReader, HistoryUnreadable
from gpushare.http_server import HttpRequest, HttpServer, Response, SlowWork, Work
from gpushare.listen_address import Address, listen, refuse_open
from gpushare.prices import Prices

if TYPE_CHECKING:
    from gpushare.dashboard.series import MetricGraph
    from gpushare.protocol import HistoryEvent

STATIC: Final = Path(__file__).parent / "static"
_PROTECT: Final = (
    "Add --token-file FILE, or --client-ca, --tls-certificate and --tls-key for mutual TLS, or "
    f"listen on {DEFAULT}"
)
#: Each is made by the method of its name.
_NAMES: Final = ("now", "subjects", "series", "series.csv", "why", "events", "reports", "report")
_API: Final = frozenset(f"{access.PROTECTED}{name}" for name in _NAMES)
_MOST_EVENTS: Final = 500
_LEAST_COMPRESSED: Final = 1024
_compressed_file: Final = lru_cache(gzip.compress)
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
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
        self._files = _static_files()

    def answer(self, guard: access.AccessGuard, request: HttpRequest) -> Response | Work:
        """Return the response to a request that `guard` lets pass, or how to make it."""
        found = guard.answer(request) or self._files.get(request.path)
        if found is None and request.path in _API:
            name = request.path.removeprefix(access.PROTECTED).replace(".", "_")
            kind = SlowWork if name == "report" else partial
            return kind(lambda: _finished(request, _made(getattr(self, name), request)))
        return _finished(request, found or Response(HTTPStatus.NOT_FOUND))

    def now(self, _request: HttpRequest) -> Response:
        """The last answer of gpushared."""
        return access.json_response(self._live.now())

    def subjects(self, request: HttpRequest) -> Response:
        """The cards and containers that the history has in a range."""
        with self._reader(request) as reader:
            return access.json_response(series.subjects(reader, *_range(request)))

    def series(self, request: HttpRequest) -> Response:
        """The data of a graph."""
        return access.json_response(self._graph(request).document())

    def series_csv(self, request: HttpRequest) -> Response:
        """The same for a spreadsheet."""
        return _file("gpushare.csv", self._graph(request).csv(), "text/csv")

    def why(self, request: HttpRequest) -> Response:
        """A container's memory by kind."""
        return access.json_response(self._live.client.why(request.value("name")))

    def events(self, request: HttpRequest) -> Response:
        """The last events of a container or card, or of the node."""
        since, until = _range(request)
        found: collections.deque[HistoryEvent] = collections.deque(maxlen=_MOST_EVENTS)
        with contextlib.suppress(UnknownTenant):
            rows = _while_wanted(request, self._live.client.history(request.value("name"), since))
            found.extend(row for row in rows if row["time"] < until)
        return access.json_response(
            [{**row, "text": EVENTS.get(row["event"], "")} for row in found]
        )

    def reports(self, _request: HttpRequest) -> Response:
        """The names of the reports."""
        return access.json_response(reports.catalogue())

    def report(self, request: HttpRequest) -> Response:
        """A report, as the page shows it or in a `format` of `gpushare report`."""
        name, form = request.value("name"), request.value("format")
        if name not in reports.REPORTS or form not in {"", *reports.MEDIA}:
            raise series.BadGraph("there is no such report or format")
        since, until = _range(request)
        chosen = {part: request.value(part) for part in reports.FILTERS}

        def events(names: Collection[str]) -> list[HistoryEvent]:
            return [
                one
                for one in _while_wanted(request, self._live.client.history("", since))
                if one["event"] in names and one["time"] < until and source.has(one)
            ]

        with self._reader(request) as reader:
            source = reports.FilteredSource(
                reader, since, until, events, self._prices, filter=reports.ReportFilter(**chosen)
            )
            table = reports.make_report(name, source, request.value("by"))
        if not form:
            return access.json_response(reports.page(table))
        return _file(f"gpushare-{name}.{form}", reports.FORMATS[form](table), reports.MEDIA[form])

    def _graph(self, request: HttpRequest) -> MetricGraph:
        asked = series.time_range(*_range(request), self._clock())
        with self._reader(request) as reader:
            return series.graph(reader, request.values("subject"), request.values("figure"), asked)

    def _reader(self, request: HttpRequest) -> HistoryReader:
        return HistoryReader(self._history, request.is_wanted)


def _range(request: HttpRequest) -> tuple[float, float]:
    """Return `since` and `until`; BadGraph if they are invalid."""
    since, until = _time(request, "since"), _time(request, "until")
    series.check_range(since, until)
    return since, until


def _time(request: HttpRequest, name: str) -> float:
    try:
        value = float(request.value(name))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise series.BadGraph(f"{name} must be a time in seconds since the epoch")
    return value


def _while_wanted(request: HttpRequest, rows: Iterable[HistoryEvent]) -> Iterator[HistoryEvent]:
    for row in rows:
        if not request.is_wanted():
            raise HistoryUnreadable(TOO_LONG)
        yield row


def _made(endpoint: Callable[[HttpRequest], Response], request: HttpRequest) -> Response:
    """Return the answer to a request, or why there is none."""
    try:
        return endpoint(request)
    except series.BadGraph as error:
        return access.json_response({"error": str(error)}, HTTPStatus.BAD_REQUEST)
    except UserError as error:
        status = _STATUS.get(error.code, HTTPStatus.SERVICE_UNAVAILABLE)
        if isinstance(error, RequestRefused):
            status = HTTPStatus.TOO_MANY_REQUESTS
        return access.json_response({"error": str(error)}, status)


def _finished(request: HttpRequest, response: Response) -> Response:
    """Return it with the headers of every response, compressed if the client can read that."""
    is_private = request.path.startswith(access.PROTECTED)
    headers = {**access.HEADERS, "Cache-Control": "no-store" if is_private else "no-cache"}
    headers |= {"Vary": "Accept-Encoding", **response.headers}
    body = response.body
    if len(body) >= _LEAST_COMPRESSED and "gzip" in request.headers.get("accept-encoding", ""):
        # The files of the pages need no token: each is compressed once.
        body = (gzip.compress if is_private else _compressed_file)(body, 6)
        headers |= {"Content-Encoding": "gzip"}
    return replace(response, body=body, headers=headers)


def _file(name: str, text: str, media: str) -> Response:
    """Return a file to download; half of a surrogate pair, which a name may have, is escaped."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    body = text.encode("utf-8", "backslashreplace")
    return Response(body=body, content_type=f"{media}; charset=utf-8", headers=headers)


def _static_files() -> dict[str, Response]:
    """Return the files of the pages by their paths."""
    found = {
        f"/{path.relative_to(STATIC)}": Response(
            body=path.read_bytes(), content_type=_TYPES.get(path.suffix, "text/plain")
        )
        for path in STATIC.rglob("*.*")
    }
    return {**found, "/": found["/index.html"]}


@contextlib.contextmanager
def opened(options: DashboardOptions) -> Iterator[tuple[HttpServer, str]]:
    """Listen; yield the server, and the address to open in a browser."""
    options.check()
    is_socket = options.listen.path is not None
    token = None if is_socket or options.is_mutual else access.DashboardToken(options.token_file)
    if token is not None:
        token.read()  # a bad file is refused before the first request
    pages = DashboardPages(LiveNode(options.socket), options.history, options.prices)
    guard = access.AccessGuard(token, options.host_names)
    tls = _tls(options)
    listener = listen(options.listen)
    try:
        if options.listen.path is not None:
            access.share_with_readers(options.listen.path, options.socket)
        server = HttpServer(listener, partial(pages.answer, guard), tls)
        yield server, _address(options, listener, token)
    finally:
        listener.close()
        if options.listen.path is not None:
            options.listen.path.unlink(missing_ok=True)


def _tls(options: DashboardOptions) -> ssl.SSLContext | None:
    if options.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.certificate, options.key)
        if options.client_ca is not None:
            context.load_verify_locations(options.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"--tls-certificate {options.certificate}: {error}") from error
    return context


def _address(
    options: DashboardOptions, listener: socket.socket, token: access.DashboardToken | None
) -> str:
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
    with opened(options) as (server, address):
        signal.signal(signal.SIGTERM, lambda *_: server.stop())
        ready(address)
        server.serve()
