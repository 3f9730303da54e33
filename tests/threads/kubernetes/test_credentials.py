# SPDX-License-Identifier: Apache-2.0
"""gpushare-node's identity: a service account or its own kubeconfig, never the kubelet's."""

from __future__ import annotations

import base64
import contextlib
from pathlib import Path
from typing import Any

import pytest

from gpushare.kubernetes.api.credentials import (
    read_kubeconfig,
)
from gpushare.kubernetes.api.server import ApiForbidden, ApiServer, ApiUnreachable
from tests.stack.api_server import StandInApiServer
from tests.unit.kubernetes.test_credentials import written


def test_tls_accepts_the_authority_of_the_kubeconfig_alone(
    tmp_path: Path, certificate: Path
) -> None:
    with StandInApiServer(certificate, token="secret").running() as server:
        data = base64.b64encode(certificate.read_bytes().partition(b"-----BEGIN PRIV")[0]).decode()
        trusted = {"server": server.url, "certificate-authority-data": data}

        def asked(cluster: dict[str, Any], token: str = "secret") -> Any:
            credentials = read_kubeconfig(written(tmp_path, cluster, {"token": token}))
            with contextlib.closing(ApiServer(credentials, patience_seconds=0)) as api:
                return api.get("/version")["gitVersion"]

        assert asked(trusted) == "v1.36.2"
        with pytest.raises(ApiForbidden, match="does not accept the token"):
            asked(trusted, "wrong")
        with pytest.raises(ApiUnreachable, match="certificate verify failed"):
            asked({"server": server.url})
        with pytest.raises(ApiUnreachable, match="not valid for 'elsewhere'"):
            asked({**trusted, "tls-server-name": "elsewhere"})


def test_a_client_certificate_is_loaded_from_text_and_leaves_no_file(
    tmp_path: Path, certificate: Path
) -> None:
    head, key = certificate.read_text().split("-----BEGIN PRIVATE KEY-----")
    user = {
        "client-certificate-data": base64.b64encode(head.encode()).decode(),
        "client-key-data": base64.b64encode(f"-----BEGIN PRIVATE KEY-----{key}".encode()).decode(),
    }
    found = read_kubeconfig(written(tmp_path, {}, user))
    before = sorted(Path("/proc/self/fd").iterdir())
    assert found.context() is not None
    assert sorted(Path("/proc/self/fd").iterdir()) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kubeconfig"]
