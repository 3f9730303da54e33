# SPDX-License-Identifier: Apache-2.0
"""What helm relies on of an API server, beside what gpushare-node does.

That is discovery, server-side apply, label selectors, and Secrets as protobuf. Apply has one
manager here, helm: it creates an object, or replaces all but its identity.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any, Final

from . import protos
from .api_server import Body, StandInApiServer
from .program import find

#: Kinds by API version and plural; those with a `*` belong to no namespace.
KINDS: Final = {
    "v1": {
        "namespaces*": "Namespace",
        "configmaps": "ConfigMap",
        "secrets": "Secret",
        "serviceaccounts": "ServiceAccount",
        "services": "Service",
    },
    "apps/v1": {"daemonsets": "DaemonSet"},
    "rbac.authorization.k8s.io/v1": {
        "clusterroles*": "ClusterRole",
        "clusterrolebindings*": "ClusterRoleBinding",
    },
    "node.k8s.io/v1": {"runtimeclasses*": "RuntimeClass"},
    "resource.k8s.io/v1": {"deviceclasses*": "DeviceClass"},
    "admissionregistration.k8s.io/v1": {
        "mutatingadmissionpolicies*": "MutatingAdmissionPolicy",
        "mutatingadmissionpolicybindings*": "MutatingAdmissionPolicyBinding",
        "validatingadmissionpolicies*": "ValidatingAdmissionPolicy",
        "validatingadmissionpolicybindings*": "ValidatingAdmissionPolicyBinding",
    },
    "monitoring.coreos.com/v1": {
        "servicemonitors": "ServiceMonitor",
        "prometheusrules": "PrometheusRule",
    },
}
_PROTOBUF: Final = b"k8s\0"
_SECRET: Final = Path(__file__).with_name("secret.proto")
_VERBS: Final = ["create", "delete", "get", "list", "patch", "update", "watch"]


class HelmCluster(StandInApiServer):
    """A cluster into which `helm` installs, in the namespace gpushare-system."""

    def helm(self, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run helm, whose own files are kept in `folder`."""
        here = (f"--kube-apiserver={self.url}", "--namespace=gpushare-system")
        environment = {**os.environ, "HOME": str(folder), "KUBECONFIG": os.devnull}
        return subprocess.run(
            [find("helm"), *words, *here],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def kept(self) -> dict[str, Body]:
        """Return the objects, without helm's releases and without what the server adds."""
        found: dict[str, Body] = {}
        for path, body in self.objects.items():
            if "/secrets/sh.helm.release." not in path:
                metadata = dict(body["metadata"])
                for key in ("uid", "resourceVersion"):
                    del metadata[key]
                found[path] = {**body, "metadata": metadata}
        return found

    def releases(self) -> list[str]:
        """Return the status of each kept revision, the first one first."""
        secrets = self.of("/api/v1/namespaces/gpushare-system/secrets")
        labels = [one["metadata"]["labels"] for one in secrets]
        return [one["status"] for one in sorted(labels, key=lambda one: int(one["version"]))]

    def parse(self, content: bytes) -> Body:
        """Return the body of a request; of those in protobuf, only a Secret is read."""
        if not content.startswith(_PROTOBUF):
            return super().parse(content)
        packed = content.removeprefix(_PROTOBUF)
        messages = protos.interface(_SECRET).message_types_by_name
        envelope = protos.message_class(messages["Unknown"]).FromString(packed)
        if envelope.typeMeta.kind != "Secret":
            return {}
        secret = protos.message_class(messages["Secret"]).FromString(envelope.raw)
        return {**protos.as_json(envelope.typeMeta), **protos.as_json(secret)}

    def answer(self, method: str, path: str, query: dict[str, str], body: Body | None) -> Body:
        """Return the answer to a request other than a watch."""
        found = _discovery(path)
        if found is not None:
            return found
        is_apply = method == "PATCH" and "force" in query
        # An update of a Secret need not say of which version.
        if is_apply or (method == "PUT" and path in self.objects and "/secrets/" in path):
            assert body is not None
            return self.put(path, body)
        answer = super().answer(method, path, query, body)
        if path.endswith("/secrets") and method == "GET":
            wanted = dict(re.findall(r"([^,=]+)=([^,]*)", query.get("labelSelector", "")))
            items = [one for one in answer["items"] if _has_labels(one, wanted)]
            return {**answer, "kind": "SecretList", "items": items}
        return answer


def _has_labels(one: Body, wanted: dict[str, str]) -> bool:
    labels: dict[str, str] = one["metadata"].get("labels", {})
    return wanted.items() <= labels.items()


def _discovery(path: str) -> Body | None:
    """Return the answer to a request of discovery, None if it is another one."""
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups = [_group(version) for version in KINDS if "/" in version]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    version = re.sub("^/apis?/", "", path)
    if version in KINDS:
        resources: list[dict[str, Any]] = [
            {
                "name": plural.rstrip("*"),
                "singularName": kind.lower(),
                "namespaced": not plural.endswith("*"),
                "kind": kind,
                "verbs": _VERBS,
            }
            for plural, kind in KINDS[version].items()
        ]
        return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
    if path == "/openapi/v3":
        names = [f"apis/{each}" if "/" in each else f"api/{each}" for each in KINDS]
        return {"paths": {name: {"serverRelativeURL": f"{path}/{name}"} for name in names}}
    version = re.sub("^/openapi/v3/apis?/", "", path)
    return _schema(version) if version in KINDS else None


def _schema(version: str) -> Body:
    """Return the document by which helm finds that the server validates fields, so it need not."""
    group, _, short = version.rpartition("/")
    patches = {
        f"/{kind}": {
            "patch": {
                "parameters": [{"name": "fieldValidation", "in": "query"}],
                "responses": {},
                "x-kubernetes-group-version-kind": {
                    "group": group,
                    "version": short,
                    "kind": kind,
                },
            }
        }
        for kind in KINDS[version].values()
    }
    return {"openapi": "3.0.0", "info": {"title": "", "version": ""}, "paths": patches}


def _group(version: str) -> Body:
    group, _, short = version.partition("/")
    named = {"groupVersion": version, "version": short}
    return {"name": group, "versions": [named], "preferredVersion": named}
