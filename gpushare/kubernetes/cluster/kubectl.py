# SPDX-License-Identifier: Apache-2.0
"""The API server as kubectl's user reaches it, through `kubectl proxy`.

kubectl has every way to authenticate: certificates, tokens, and the programs that clouds have for
it, which it runs once for all requests. The proxy serves a Unix socket in a folder that only this
user can enter, and refuses every request that would change something.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from gpushare.errors import ErrorCode, UserError
from gpushare.kubernetes.api.credentials import SERVICE_ACCOUNT, Credentials
from gpushare.kubernetes.api.server import CONNECT_SECONDS, ApiServer
from gpushare.unix_http import UnixSocketConnection

_READ_ONLY: Final = "--reject-methods=^(POST|PUT|PATCH|DELETE)$"
_LOG_LINE: Final = re.compile(r"[IWEF][0-9]{4} ")  # of kubectl; the error is also in an answer
_END_SECONDS: Final = 5.0
_LONGEST_FOLDER: Final = 80  # the path of a socket has at most 103 bytes on macOS


class KubectlError(UserError):
    """kubectl is missing, or cannot use its configuration."""

    code = ErrorCode.UNREACHABLE


class KubectlServer(ApiServer):
    """The API server behind the proxy on the Unix socket `path`. No request is repeated."""

    def __init__(self, path: Path) -> None:
        super().__init__(Credentials("http://localhost"), patience_seconds=0)
        self._path = path

    def open_connection(self, seconds: float) -> http.client.HTTPConnection:
        """Return an open connection to the proxy; `seconds` limits each wait on it."""
        connection = UnixSocketConnection(self._path, CONNECT_SECONDS)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise KubectlError(f"kubectl proxy has ended: {error.strerror}") from error
        connection.sock.settimeout(seconds)
        return connection


@contextlib.contextmanager
def connect(options: Sequence[str] = ()) -> Iterator[KubectlServer]:
    """Run `kubectl OPTIONS proxy` until the block ends; KubectlError if it cannot start."""
    usual = tempfile.gettempdir()
    place = usual if len(usual) <= _LONGEST_FOLDER else "/tmp"  # noqa: S108 - a folder in it
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir=place) as folder:
        path = Path(folder, "api")
        words = ("proxy", f"--unix-socket={path}", _READ_ONLY)
        process = _start(["kubectl", *options, *words])
        errors = _ErrorLines(process)
        errors.start()
        server = KubectlServer(path)
        before = signal.signal(signal.SIGTERM, functools.partial(_stop, process))
        try:
            assert process.stdout is not None
            if not process.stdout.readline():  # it says where it serves, and nothing after that
                errors.join()
                raise KubectlError(f"kubectl: {errors.last or 'no reason given'}")
            errors.is_started = True
            yield server
        finally:
            server.close()
            _end(process)
            errors.join()
            signal.signal(signal.SIGTERM, before)


def _stop(process: subprocess.Popen[str], number: int, _frame: Any) -> None:
    """End kubectl at once, which ends all requests, and then this process."""
    process.terminate()
    sys.exit(128 + number)


class Answer(NamedTuple):
    """How kubectl ended."""

    status: int
    output: str
    errors: str


def run_kubectl(options: Sequence[str], *words: str, objects: Any = None) -> Answer:
    """Run `kubectl OPTIONS WORDS`, which reads `objects`; KubectlError if it cannot start."""
    process = _start(["kubectl", *options, *words], stdin=subprocess.PIPE)
    output, errors = process.communicate("" if objects is None else json.dumps(objects))
    return Answer(process.returncode, output, errors)


def current_namespace(options: Sequence[str] = ()) -> str:
    """Return the namespace of kubectl's context, or of this pod."""
    words = ("config", "view", "--minify", "--output=jsonpath={..namespace}")
    process = _start(["kubectl", *options, *words])
    found = process.communicate()[0].strip()
    if not found:
        with contextlib.suppress(OSError):
            found = (SERVICE_ACCOUNT / "namespace").read_text("ascii").strip()
    return found or "default"


def _start(argv: Sequence[str], stdin: int | None = None) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(
            argv, stdin=stdin, stdout=pipe, stderr=pipe, text=True, errors="replace"
        )
    except OSError as error:
        raise KubectlError(f"{argv[0]}: {error.strerror}. Install kubectl in PATH") from error


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()


class _ErrorLines(threading.Thread):
    """Reads kubectl's stderr. What a program for authentication asks is passed on."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(daemon=True)
        self._process = process
        self.is_started = False
        self.last = ""

    def run(self) -> None:
        """Read until kubectl ends."""
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self.last = line.strip().removeprefix("error: ")
                if self.is_started and not _LOG_LINE.match(line):
                    sys.stderr.write(line)
                    sys.stderr.flush()
