# SPDX-License-Identifier: Apache-2.0
"""gpushare-node's identity: a service account or its own kubeconfig, never the kubelet's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.kubernetes.api import credentials
from gpushare.kubernetes.api.credentials import (
    BadCredentials,
    Credentials,
    read_kubeconfig,
    service_account,
)


def written(folder: Path, cluster: dict[str, Any], user: dict[str, Any], mode: int = 0o600) -> Path:
    path = folder / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {"name": "other", "context": {"cluster": "none", "user": "none"}},
            {"name": "here", "context": {"cluster": "c", "user": "u"}},
        ],
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443", **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(document))
    path.chmod(mode)
    return path


def test_the_service_account_is_found_by_the_variables_of_the_pod(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first")
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    found = service_account(tmp_path, environment)
    assert (found.host, found.port, found.is_encrypted) == ("fd00::1", 6443, True)
    assert found.ca == tmp_path / "ca.crt"


def test_outside_a_pod_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(BadCredentials, match="not in a pod with a service account"):
        service_account(tmp_path)
    monkeypatch.setattr(credentials, "service_account", lambda: Credentials("https://pod"))
    assert credentials.find_credentials().server == "https://pod"
    with pytest.raises(BadCredentials, match=f"token {tmp_path}/token: No such file"):
        Credentials("https://a", token_file=tmp_path / "token").authorization()


def test_a_renewed_token_is_used_for_the_next_request(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    one = Credentials("https://a", token_file=token)
    assert one.authorization() == "Bearer first"
    token.write_text("second\n")
    assert one.authorization() == "Bearer second"


def test_files_are_relative_to_the_kubeconfig_and_a_token_file_is_preferred(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from the file")
    user = {"tokenFile": "token", "token": "old"}
    found = read_kubeconfig(written(tmp_path, {"certificate-authority": "ca.crt"}, user))
    assert found.ca == tmp_path / "ca.crt"
    assert found.authorization() == "Bearer from the file"


@pytest.mark.parametrize(
    ("cluster", "user", "rule"),
    [
        ({"insecure-skip-tls-verify": True}, {}, "anyone could be the API server"),
        ({"proxy-url": "http://proxy"}, {}, "proxy is not supported"),
        ({"server": "ftp://x"}, {}, "not a URL of an API server"),
        ({"server": "http://10.0.0.1"}, {}, "not a URL of an API server"),
        ({"server": "https://x:99999"}, {}, "Port out of range"),
        ({}, {"exec": {"command": "aws"}}, "a program is not supported"),
        ({}, {"username": "admin"}, "a password is not supported"),
        ({}, {"client-certificate-data": "%"}, "not base64"),
        ({"certificate-authority": "/var/lib/kubelet/ca"}, {}, "the kubelet's own credentials"),
        ({}, {"client-key": "/var/lib/kubelet/pki/k.pem"}, "the kubelet's own credentials"),
    ],
)
def test_what_is_not_supported_or_not_safe_is_refused(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], rule: str
) -> None:
    with pytest.raises(BadCredentials, match=rule):
        read_kubeconfig(written(tmp_path, cluster, user))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("[", "while parsing a flow node"),
        ("kind: Pod", "not a kubeconfig"),
        ("kind: Config\ncurrent-context: c", 'there is no context "c"'),
        (" " * (2 << 20), "larger than 1 MiB"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_refused(tmp_path: Path, text: str, rule: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(BadCredentials, match=rule):
        read_kubeconfig(path)


@pytest.mark.parametrize("path", ["/etc/kubernetes/kubelet.conf", "/var/lib/kubelet/kubeconfig"])
def test_the_kubelets_kubeconfig_is_refused_before_it_is_read(path: str) -> None:
    with pytest.raises(BadCredentials, match="the kubelet's own credentials"):
        read_kubeconfig(Path(path))


def test_a_link_to_the_kubelets_kubeconfig_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "kubelet.conf"
    target.write_text("kind: Config")
    monkeypatch.setattr(credentials, "_KUBELETS", (str(target),))
    link = tmp_path / "mine"
    link.symlink_to(target)
    with pytest.raises(BadCredentials, match="the kubelet's own credentials"):
        read_kubeconfig(link)


def test_a_kubeconfig_that_all_users_can_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadCredentials, match="Run chmod 600"):
        read_kubeconfig(written(tmp_path, {}, {"token": "t"}, 0o644))
