# SPDX-License-Identifier: Apache-2.0
"""How gpushare-node proves to the API server who it is, and the server to gpushare-node.

In a pod: the service account, whose token the kubelet replaces about once an hour. On a host: a
kubeconfig of its own. The kubelet's own credentials are refused: with them, a fault of gpushare
could change everything that the node may change, and an audit could not tell the two apart.

Files are read for each new connection (the token: for each request), so that they can be renewed.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gpushare.errors import UserError

#: Source: Kubernetes, "Accessing the API from a Pod".
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DEFAULT_KUBECONFIG: Final = Path("/etc/gpushare/kubeconfig")
_TOKEN_BYTES: Final = 65536


class BadCredentials(UserError):
    """The credentials are missing or not usable; the message names the file and the fix."""


@dataclass(frozen=True)
class Credentials:
    """An API server and the proof of identity; `server` is a URL such as `https://10.0.0.1:6443`.

    Without `ca` (a file) and `ca_text` (PEM), the system's authorities are trusted. The identity is
    a token, in a file or as text, or a client certificate with its key, as files or PEM.
    """

    server: str
    ca: Path | None = None
    ca_text: str = ""
    server_name: str = ""  # in the server's certificate; empty: its host
    token_file: Path | None = None
    token: str = ""
    certificate: Path | str = ""
    key: Path | str = ""

    def __post_init__(self) -> None:
        """Refuse a server that is not a URL of HTTPS, or of this machine (`kubectl proxy`)."""
        url = urlsplit(self.server)
        try:
            port = url.port
        except ValueError as error:
            raise BadCredentials(f"server {self.server}: {error}") from error
        is_local = url.scheme == "http" and url.hostname in {"127.0.0.1", "::1", "localhost"}
        if not url.hostname or port == 0 or not (url.scheme == "https" or is_local):
            raise BadCredentials(
                f"server {self.server}: not a URL of an API server. Use https://HOST:PORT"
            )

    @property
    def is_encrypted(self) -> bool:
        """Whether the server is reached over TLS."""
        return urlsplit(self.server).scheme == "https"

    @property
    def host(self) -> str:
        """The server's name or address."""
        return urlsplit(self.server).hostname or ""

    @property
    def port(self) -> int:
        """The server's port."""
        return urlsplit(self.server).port or (443 if self.is_encrypted else 80)

    @property
    def base_path(self) -> str:
        """What comes before every path, as some gateways require; usually empty."""
        return urlsplit(self.server).path.rstrip("/")

    def authorization(self) -> str:
        """Return the Authorization header, empty for a client certificate."""
        token = self.token
        if self.token_file is not None:
            try:
                with self.token_file.open("rb") as opened:
                    token = opened.read(_TOKEN_BYTES).decode("ascii").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise BadCredentials(f"token {self.token_file}: {_why(error)}") from error
        return f"Bearer {token}" if token else ""

    def context(self) -> ssl.SSLContext:
        """Return the TLS settings for one connection; BadCredentials if a file is unusable."""
        try:
            context = ssl.create_default_context(
                cafile=None if self.ca is None else str(self.ca), cadata=self.ca_text or None
            )
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.certificate:
                with _PemFile(self.certificate) as certificate, _PemFile(self.key) as key:
                    context.load_cert_chain(certificate.path, key.path)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            names = [str(one) for one in (self.ca, self.certificate, self.key) if one]
            files = ", ".join(name for name in names if not name.startswith("-----")) or "PEM text"
            raise BadCredentials(
                f"certificates for {self.server} ({files}): {_why(error)}"
            ) from error
        return context


class _PemFile:
    """A path at which OpenSSL finds a file, or a text, which is never written to a disk."""

    def __init__(self, source: Path | str) -> None:
        self._descriptor = -1
        self.path = str(source)
        if isinstance(source, str):
            self._descriptor = os.memfd_create("gpushare-pem", os.MFD_CLOEXEC)
            os.write(self._descriptor, source.encode())
            self.path = f"/proc/self/fd/{self._descriptor}"

    def __enter__(self) -> _PemFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def service_account(
    folder: Path = SERVICE_ACCOUNT, environment: dict[str, str] | None = None
) -> Credentials:
    """Return the credentials of this pod's service account; BadCredentials outside a pod."""
    found = os.environ if environment is None else environment
    host = found.get("KUBERNETES_SERVICE_HOST", "")
    port = found.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (folder / "token").exists():
        raise BadCredentials(
            f"not in a pod with a service account: KUBERNETES_SERVICE_HOST or {folder}/token is "
            f"missing. On a host, write a kubeconfig to {DEFAULT_KUBECONFIG}"
        )
    authority = f"[{host}]" if ":" in host else host
    return Credentials(
        f"https://{authority}:{port}", ca=folder / "ca.crt", token_file=folder / "token"
    )


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
