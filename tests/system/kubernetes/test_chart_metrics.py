# SPDX-License-Identifier: Apache-2.0
"""The chart's objects for Prometheus and Grafana: exporter, ServiceMonitor, rules, dashboards."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from cloudcoil.models.prometheus_operator import v1 as operator

from gpushare.exporter import DEFAULT
from gpushare.listen_address import parse_address

from . import schemas
from .test_chart import of, rendered

pytestmark = pytest.mark.needs("helm")

ALL = {
    "enabled": True,
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboards": {"enabled": True},
}


def named(kind: str, name: str, objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in of(kind, objects) if one["metadata"]["name"] == name]


def check(body: dict[str, Any]) -> None:
    """Fail if an object is not valid, or has a field that the schema does not know."""
    if body["apiVersion"] == "monitoring.coreos.com/v1":
        read = getattr(operator, body["kind"]).model_validate(body)
        assert read.model_dump(mode="json", by_alias=True, exclude_unset=True) == body
    else:
        schemas.check(body)


@pytest.mark.parametrize("state", ["present", "absent"])
@pytest.mark.parametrize("enabled", [False, True])
def test_every_object_is_there_if_it_is_enabled_and_valid(enabled: bool, state: str) -> None:
    for monitor, rule, dashboards in itertools.product((False, True), repeat=3):
        if monitor and not enabled:
            continue
        values = {
            "state": state,
            "metrics": {
                "enabled": enabled,
                "serviceMonitor": {"enabled": monitor, "labels": {"release": "p"}},
                "prometheusRule": {"enabled": rule, "labels": {}},
                "dashboards": {"enabled": dashboards},
            },
        }
        objects = rendered(values)
        for body in objects:
            check(body)
        here = state == "present"
        assert len(of("ServiceMonitor", objects)) == (monitor and here)
        assert len(of("PrometheusRule", objects)) == (rule and here)
        assert len(of("Service", objects)) == (enabled and here)
        assert len(named("DaemonSet", "gpushare-exporter", objects)) == (enabled and here)
        assert len(named("ConfigMap", "gpushare-dashboards", objects)) == (dashboards and here)


def test_prometheus_finds_each_exporter_and_presents_its_token() -> None:
    objects = rendered({"metrics": {**ALL, "tokenSecret": "gpu-token", "address": "[::]"}})
    (monitor,), (service,) = of("ServiceMonitor", objects), of("Service", objects)
    (daemons,) = named("DaemonSet", "gpushare-exporter", objects)
    assert monitor["metadata"]["labels"] == {"release": "prometheus"}
    assert monitor["spec"]["selector"]["matchLabels"] == service["metadata"]["labels"]
    assert service["spec"]["clusterIP"] == "None"
    pod = daemons["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (endpoint,), (port,) = monitor["spec"]["endpoints"], service["spec"]["ports"]
    (container,) = pod["spec"]["containers"]
    assert endpoint["port"] == port["name"]
    assert port["targetPort"] == container["ports"][0]["name"]
    assert endpoint["honorLabels"]
    assert endpoint["authorization"]["credentials"] == {"name": "gpu-token", "key": "token"}
    (token,) = (one["secret"] for one in pod["spec"]["volumes"] if one["name"] == "token")
    assert token == {"secretName": "gpu-token", "defaultMode": 0o440}
    (listen,) = (word for word in container["args"] if word.startswith("--listen="))
    address = parse_address(listen.partition("=")[2], DEFAULT)
    assert (address.host, address.port) == ("::", container["ports"][0]["containerPort"])
    assert address.port == port["port"] == int(DEFAULT.rpartition(":")[2])


def test_the_exporter_has_no_privileges_and_no_access_to_the_api_server() -> None:
    (daemons,) = named("DaemonSet", "gpushare-exporter", rendered({"metrics": ALL}))
    spec = daemons["spec"]["template"]["spec"]
    assert not {"hostPID", "hostNetwork", "hostIPC", "serviceAccountName"} & set(spec)
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
