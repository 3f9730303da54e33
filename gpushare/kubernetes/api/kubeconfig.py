# SPDX-License-Identifier: Apache-2.0
"""Credentials from a kubeconfig file: what a node service needs of the format, and no plugins.

Source: Kubernetes, "kubeconfig (v1)" reference.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from gpushare.kubernetes.api.credentials import (
    DEFAULT_KUBECONFIG,
    BadCredentials,
    Credentials,
    service_account,
)

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
    "docs/how-to/kubernetes-dra.md"
)


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
        found = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise BadCredentials(f"kubeconfig {path}: {error}") from error
    if not isinstance(found, dict) or found.get("kind") != "Config":
        raise BadCredentials(f"kubeconfig {path}: not a kubeconfig (kind: Config)")
    return found


def _named(path: Path, document: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    """Return the cluster, user or context called `name`; the lists have the plural's name."""
    entries = document.get(f"{kind}s")
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and entry.get("name") == name:
            found = entry.get(kind)
            if isinstance(found, dict):
                return found
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
    found = path.parent / str(section[key])
    _refuse_kubelets(found)
    return found


def _refuse_kubelets(path: Path) -> None:
    for name in {str(path.absolute()), str(path.resolve())}:
        if name.startswith(_KUBELETS):
            raise BadCredentials(f"{path}: the kubelet's own credentials. Fix: {_MINE}")
