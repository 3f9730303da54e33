# SPDX-License-Identifier: Apache-2.0
"""How gpushare-node proves to the API server who it is, and the server to gpushare-node.

In a pod: the service account, whose token the kubelet replaces about once an hour. On a host: a
kubeconfig of its own, of which no plugin is executed. The kubelet's own credentials are refused:
with them, a fault of gpushare could change everything that the node may change, and an audit could
not tell the two apart.

Files are read for each new connection (the token: for each request), so that they can be renewed.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from gpushare.errors import UserError

DEFAULT_KUBECONFIG: Final = Path("/etc/gpushare/kubeconfig")
_MOST_BYTES: Final = 1 << 20
#: Where kubeadm, k3s, RKE2 and MicroK8s keep the kubelet's own credentials.
_KUBELETS: Final = (
    "/etc/kubernetes/kubelet.conf",
    "/etc/kubernetes/bootstrap-kubelet.conf",
    "/var/lib/kubelet/",
    "/var/lib/rancher/k3s/agent/",
    "/var/lib/rancher/rke2/agent/",
    "/var/snap/microk8s/current/credentials/kubelet.config",
)
_NOT_READ: Final = {
    "exec": "a program",
    "auth-provider": "a provider",
    "username": "a password",
    "impersonate": "impersonation",
}
_MINE: Final = (
    f"create a service account and write a kubeconfig with its token to {DEFAULT_KUBECONFIG}: "
    "docs/how-to/kubernetes-helm.md"
)
#: Source: Kubernetes, "Accessing the API from a Pod".
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
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
        """The prefix of every path, as some gateways require; usually empty."""
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
                with _pem_file(self.certificate) as certificate, _pem_file(self.key) as key:
                    context.load_cert_chain(certificate, key)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            names = [str(file) for file in (self.ca, self.certificate, self.key) if file]
            files = ", ".join(name for name in names if not name.startswith("-----")) or "PEM text"
            raise BadCredentials(
                f"certificates for {self.server} ({files}): {_why(error)}"
            ) from error
        return context


@contextlib.contextmanager
def _pem_file(source: Path | str) -> Iterator[str]:
    """Yield a path at which OpenSSL finds a file, or a text, which is never written to a disk."""
    if isinstance(source, Path):
        yield str(source)
        return
    with os.fdopen(os.memfd_create("gpushare-pem", os.MFD_CLOEXEC), "wb") as file:
        file.write(source.encode())
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def service_account(
    folder: Path = SERVICE_ACCOUNT, environment: dict[str, str] | None = None
) -> Credentials:
    """Return the credentials of this pod's service account; BadCredentials outside a pod."""
    variables = os.environ if environment is None else environment
    host = variables.get("KUBERNETES_SERVICE_HOST", "")
    port = variables.get("KUBERNETES_SERVICE_PORT", "443")
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


def find_credentials(kubeconfig: Path | None = None) -> Credentials:
    """Return the credentials of this process: of `kubeconfig`, otherwise of its pod or host."""
    if kubeconfig is not None:
        return read_kubeconfig(kubeconfig)
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return service_account()
    return read_kubeconfig(DEFAULT_KUBECONFIG)


def read_kubeconfig(path: Path) -> Credentials:
    """Return the credentials of the current context in `path`; BadCredentials with the fix."""
    _refuse_kubelets(path)
    document = _document(path)
    context = _named(path, document, "context", str(document.get("current-context") or ""))
    cluster = _named(path, document, "cluster", str(context.get("cluster") or ""))
    user = _named(path, document, "user", str(context.get("user") or ""))
    for key, what in _NOT_READ.items():
        if key in user:
            raise BadCredentials(f"{path}: user.{key}: {what} is not supported. Fix: {_MINE}")
    if cluster.get("insecure-skip-tls-verify"):
        raise BadCredentials(
            f"{path}: cluster.insecure-skip-tls-verify: anyone could be the API server. "
            "Set certificate-authority instead"
        )
    if cluster.get("proxy-url"):
        raise BadCredentials(f"{path}: cluster.proxy-url: a proxy is not supported. Remove it")
    ca = _file_or_text(path, cluster, "certificate-authority")
    token_file = _path(path, user, "tokenFile")
    return Credentials(
        str(cluster.get("server") or ""),
        ca=ca if isinstance(ca, Path) else None,
        ca_text=ca if isinstance(ca, str) else "",
        server_name=str(cluster.get("tls-server-name") or ""),
        token_file=token_file,
        token="" if token_file else str(user.get("token") or ""),
        certificate=_file_or_text(path, user, "client-certificate"),
        key=_file_or_text(path, user, "client-key"),
    )


def _document(path: Path) -> Mapping[str, Any]:
    import yaml  # noqa: PLC0415 - not in a pod, and not in the archive of kubectl gpushare

    try:
        with path.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            text = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        raise BadCredentials(f"kubeconfig {path}: {error.strerror}. Fix: {_MINE}") from error
    if mode & 0o004:
        raise BadCredentials(f"kubeconfig {path}: readable by every user. Run chmod 600 {path}")
    if len(text) > _MOST_BYTES:
        raise BadCredentials(f"kubeconfig {path}: larger than {_MOST_BYTES >> 20} MiB")
    try:
        loaded = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise BadCredentials(f"kubeconfig {path}: {error}") from error
    if not isinstance(loaded, dict) or loaded.get("kind") != "Config":
        raise BadCredentials(f"kubeconfig {path}: not a kubeconfig (kind: Config)")
    return loaded


def _named(path: Path, document: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    """Return the cluster, user or context called `name`; the lists have the plural's name."""
    entries = document.get(f"{kind}s")
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and entry.get("name") == name:
            section = entry.get(kind)
            if isinstance(section, dict):
                return section
    raise BadCredentials(f'kubeconfig {path}: there is no {kind} "{name}"')


def _file_or_text(path: Path, section: Mapping[str, Any], key: str) -> Path | str:
    """Return the file of `key`, or the PEM text of `key`-data, which takes precedence."""
    data = section.get(f"{key}-data")
    if not data:
        return _path(path, section, key) or ""
    try:
        return base64.b64decode(str(data), validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError, ValueError) as error:
        raise BadCredentials(f"kubeconfig {path}: {key}-data: not base64 of PEM text") from error


def _path(path: Path, section: Mapping[str, Any], key: str) -> Path | None:
    """Return the file that `key` names, relative to the kubeconfig."""
    if not section.get(key):
        return None
    file = path.parent / str(section[key])
    _refuse_kubelets(file)
    return file


def _refuse_kubelets(path: Path) -> None:
    for name in {str(path.absolute()), str(path.resolve())}:
        if name.startswith(_KUBELETS):
            raise BadCredentials(f"{path}: the kubelet's own credentials. Fix: {_MINE}")
