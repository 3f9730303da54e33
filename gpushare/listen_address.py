# SPDX-License-Identifier: Apache-2.0
"""Addresses that gpushare's HTTP servers listen on, and the tokens of their clients.

Every address but this machine's loopback address is on a network, where the names of containers
and pods are confidential, and requires a token.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.errors import ErrorCode, UserError
from gpushare.protocol.kubernetes import TOKEN_HEADER

_HOST_AND_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9.]+|localhost):([0-9]{1,5})")
_BACKLOG: Final = 256
_LEAST: Final = 16
_MOST: Final = 4096


class BadToken(UserError):
    """The file does not contain a secure token."""


def read_token(file: Path) -> bytes:
    """Return the token in `file`, which is read for each request so that it can be changed."""
    try:
        with file.open("rb") as opened:
            mode = file.stat().st_mode
            content = opened.read(_MOST + 1).strip()
    except OSError as error:
        raise BadToken(f"--token-file {file}: {error.strerror}") from error
    if mode & 0o004:
        raise BadToken(f"--token-file {file}: readable by every user. Run chmod 640 {file}")
    if not _LEAST <= len(content) <= _MOST or not content.isascii() or b" " in content:
        raise BadToken(
            f"--token-file {file}: must contain one word of at least {_LEAST} ASCII characters. "
            f"Create one: openssl rand -hex 32 > {file}"
        )
    return content


def is_authorized(headers: Mapping[str, str], token: bytes) -> bool:
    """Whether the headers contain `token`, as a bearer or in TOKEN_HEADER; in constant time."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    shown = bearer.strip() if scheme.lower() == "bearer" else headers.get(TOKEN_HEADER, "")
    return hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), token)


class BadAddress(UserError):
    """The server cannot, or must not, listen on this address; the message has the fix."""

    code = ErrorCode.USAGE


@dataclass(frozen=True)
class Address:
    """An address to listen on: a path, or a numeric host and a port."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether only processes of this machine can connect."""
        return self.path is not None or ipaddress.ip_address(self.host).is_loopback


def parse_address(text: str, default: str) -> Address:
    """Return the address in `text`; BadAddress, which names `default`, if it is invalid."""
    if text.startswith("unix:"):
        path = Path(text.removeprefix("unix:"))
        if not path.is_absolute():
            raise BadAddress(f'--listen "{text}": not an absolute path. Use unix:/run/NAME.sock')
        return Address(path=path)
    found = _HOST_AND_PORT.fullmatch(text)
    if found is None or int(found[2]) > 65535:
        raise BadAddress(
            f'--listen "{text}": not an address. Use HOST:PORT with a numeric host, [IPV6]:PORT, '
            f"or unix:/PATH (default: {default})"
        )
    host = "127.0.0.1" if found[1] == "localhost" else found[1].strip("[]")
    try:
        ipaddress.ip_address(host)
    except ValueError as error:
        raise BadAddress(f'--listen "{text}": {error}. Use, for example, {default}') from error
    return Address(host=host, port=int(found[2]))


def refuse_open(address: Address, fix: str, *, is_protected: bool) -> None:
    """Raise BadAddress with this `fix` if other machines could connect without a proof."""
    if not address.is_local and not is_protected:
        raise BadAddress(
            f"--listen {address}: reachable from other machines, and the answers contain the names "
            f"of containers. {fix}"
        )


def listen(address: Address) -> socket.socket:
    """Return a socket that listens on `address`; BadAddress if that fails."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(socket.AF_UNIX if address.path else family, socket.SOCK_STREAM)
    try:
        if address.path is not None:
            _bind(listener, address.path)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address.host, address.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        text = f"--listen {address}: {error.strerror}. Use another address"
        raise BadAddress(text, code=ErrorCode.FAILED) from error
    return listener


def _bind(listener: socket.socket, path: Path) -> None:
    """Bind to `path`, and replace a socket on which no process listens."""
    try:
        listener.bind(str(path))
    except OSError:
        if not path.is_socket() or _is_used(path):
            raise
        path.unlink()
        listener.bind(str(path))
    path.chmod(0o660)  # no client can connect before listen(2)


def _is_used(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True


def is_restricted(control: Path) -> bool:
    """Whether only some users may query gpushared: read_group in gpushare.yaml."""
    try:
        mode = control.stat().st_mode
    except OSError:
        return False  # no daemon, no metrics
    return stat.S_ISSOCK(mode) and mode & 0o006 != 0o006
