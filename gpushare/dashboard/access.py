# SPDX-License-Identifier: Apache-2.0
"""Decides which requests are answered: by host name and token. Adds the security headers.

Every user of the machine can connect to a loopback port, so names of containers need the token
there. A Unix socket has the group and mode of the control socket, and so the same users can
connect. With mutual TLS, the certificate is the proof.

A page of another site can have a browser send requests to this server, under a name that it made
point here (DNS rebinding). So the Host header must be a numeric address, `localhost`, or a known
name. The token is in a header that other sites cannot set, never in a cookie, which the browser
would also send to the servers of other users on this machine.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import os
import secrets
import socket
import stat
import sys
from collections.abc import Collection
from http import HTTPStatus
from pathlib import Path
from typing import Final

from gpushare.http_server import HttpRequest, Response
from gpushare.listen_address import BadToken, is_authorized, read_token

#: Everything comes from this server; nothing runs that is not a file of it.
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
PROTECTED: Final = "/api/"
KEY: Final = f"{PROTECTED}key"


class DashboardToken:
    """The token of a file, which is read for each request, or a random one of this process."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._random = secrets.token_urlsafe(32).encode()
        self._secret = secrets.token_bytes(32)

    def read(self) -> bytes:
        """Return it; BadToken if the file has none."""
        return self._random if self._file is None else read_token(self._file)

    def key(self) -> str:
        """Return what this process alone accepts instead, as long as the token is the same."""
        return hmac.new(self._secret, self.read(), "sha256").hexdigest()


class AccessGuard:
    """Refuses the requests that may not be answered. Without `token`, every client may read.

    A page exchanges the token for a key, and keeps only that. A server that listens on this port
    later, and reads what the browser has stored, gets nothing that any process accepts.
    """

    def __init__(self, token: DashboardToken | None, names: Collection[str] = ()) -> None:
        self._token = token
        self._names = {"localhost", socket.gethostname().lower(), *map(str.lower, names)}

    def answer(self, request: HttpRequest) -> Response | None:
        """Return the refusal of a request, or the key; None: the pages may answer it."""
        if not self._is_known(request.headers.get("host", "")):
            text = "this is no name of this server; add it with gpushare dashboard --host-name"
            return json_response({"error": text}, HTTPStatus.MISDIRECTED_REQUEST)
        if request.method not in {"GET", "HEAD"}:
            return Response(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"})
        if self._token is None or not request.path.startswith(PROTECTED):
            return None
        try:
            if request.path == KEY and is_authorized(request.headers, self._token.read()):
                return json_response({"key": self._token.key()})
            known = self._token.read(), self._token.key().encode()
            if any(is_authorized(request.headers, one) for one in known):
                return None
        except BadToken as bad:
            sys.stderr.write(f"gpushare dashboard: {bad}\n")
            return Response(HTTPStatus.INTERNAL_SERVER_ERROR)
        text = "open the address that gpushare dashboard printed: it has the token"
        return json_response(
            {"error": text}, HTTPStatus.UNAUTHORIZED, **{"WWW-Authenticate": "Bearer"}
        )

    def _is_known(self, host: str) -> bool:
        name = host.lower()
        if not name.endswith("]"):  # an IPv6 address without a port
            before, colon, port = name.rpartition(":")
            name = before if colon and port.isdecimal() else name
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True


def json_response(data: object, status: HTTPStatus = HTTPStatus.OK, **headers: str) -> Response:
    """Return `data` as JSON, in ASCII: a name may have half of a surrogate pair."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return Response(status, text.encode(), "application/json", headers)


def share_with_readers(path: Path, control: Path) -> None:
    """Give the socket at `path` the group and mode of the control socket (read_group).

    It stays closed to others if there is no control socket, or this user may not set its group.
    """
    try:
        found = control.stat()
        os.chown(path, -1, found.st_gid)
        path.chmod(stat.S_IMODE(found.st_mode) & 0o666)
    except OSError:
        path.chmod(0o600)
