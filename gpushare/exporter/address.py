# SPDX-License-Identifier: Apache-2.0
"""Where the exporter may listen, and from where on a token has to be shown.

Loopback is this machine's, and a container in a network namespace of its own has another. Any other
address is a network, where names of containers and pods are nobody's business: it takes a token.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.errors import UserError

#: Outside of 9100-9999, which are all taken by other exporters (the list of default ports in
#: Prometheus' wiki), and 9418 is git's.
DEFAULT: Final = "127.0.0.1:10418"
_HOST_AND_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9.]+|localhost):([0-9]{1,5})")
_BACKLOG: Final = 32


class BadAddress(UserError):
    """It cannot, or must not, be listened there; the text says what to write."""


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
        """Whether only this machine's own processes can reach it."""
        return self.path is not None or ipaddress.ip_address(self.host).is_loopback


def parse(text: str) -> Address:
    """Return the address that `text` says; BadAddress where it says none."""
    if text.startswith("unix:"):
        path = Path(text.removeprefix("unix:"))
        if not path.is_absolute():
            raise BadAddress(f'--listen "{text}" has no absolute path; write unix:/run/NAME.sock')
        return Address(path=path)
    found = _HOST_AND_PORT.fullmatch(text)
    if found is None or int(found[2]) > 65535:
        raise BadAddress(
            f'--listen "{text}" is no address; write HOST:PORT with a numeric host, [IPV6]:PORT, '
            f"or unix:/PATH (default: {DEFAULT})"
        )
    host = "127.0.0.1" if found[1] == "localhost" else found[1].strip("[]")
    try:
        ipaddress.ip_address(host)
    except ValueError as error:
        raise BadAddress(f'--listen "{text}": {error}; write e.g. {DEFAULT}') from error
    return Address(host=host, port=int(found[2]))


def refuse_open(address: Address, token: Path | None) -> None:
    """Raise BadAddress where strangers could ask without a token."""
    if not address.is_local and token is None:
        raise BadAddress(
            f"--listen {address} can be reached by others than this machine: it shows the names of "
            f"its containers. Give --token-file FILE (then ask with that bearer token), or listen "
            f"on {DEFAULT}"
        )


def listen(address: Address) -> socket.socket:
    """Return a socket that listens there; BadAddress where it cannot."""
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
        raise BadAddress(f"--listen {address}: {error.strerror}; name another address") from error
    return listener


def _bind(listener: socket.socket, path: Path) -> None:
    """Bind to `path`, in place of a socket on which nobody listens any more."""
    try:
        listener.bind(str(path))
    except OSError:
        if not path.is_socket() or _is_used(path):
            raise
        path.unlink()
        listener.bind(str(path))
    path.chmod(0o660)  # nobody connects before it listens


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
    """Whether not everybody on this machine may ask gpushared: read_group in gpushare.yaml."""
    try:
        mode = control.stat().st_mode
    except OSError:
        return False  # no daemon, nothing to show
    return stat.S_ISSOCK(mode) and mode & 0o006 != 0o006
