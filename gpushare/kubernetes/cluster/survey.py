# SPDX-License-Identifier: Apache-2.0
"""Which nodes of a cluster have gpushare, and the cards and containers of all of them.

Every such node has rows or a problem: none is silently missing. The exporters are asked at once,
through the API server's proxy, which does not pass on the header Authorization; their token is in a
header of its own.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from gpushare.errors import ErrorCode, UserError
from gpushare.kubernetes.api.claims import CLAIMS
from gpushare.kubernetes.api.labels import NODES
from gpushare.kubernetes.api.server import (
    FAILURES,
    ApiError,
    ApiForbidden,
    ApiNotFound,
    ApiRequest,
    ApiServer,
    Deadline,
    Object,
    Query,
    path_of,
    refusal,
)
from gpushare.kubernetes.api.slices import SLICES
from gpushare.kubernetes.cluster import ClusterCard, ClusterContainer, allocations
from gpushare.kubernetes.cluster.figures import BadFigures, NodeFigures, node_figures
from gpushare.protocol.kubernetes import DRIVER, MODE_LABEL, RESOURCE, TOKEN_HEADER

PODS: Final = "/api/v1/pods"
SECRETS: Final = "/api/v1/secrets"
#: The label of the chart's pods, and its values: gpushare-node's, and the exporter's.
LABEL: Final = "app.kubernetes.io/name"
AGENT: Final = "gpushare"
EXPORTER: Final = "gpushare-exporter"
_REMOVED: Final = "removed"  # the container of a pod that has removed gpushare from its node
#: Of the exporter's pod: its port, and the volume and the key of its token.
_PORT: Final = "metrics"
_TOKEN: Final = "token"  # noqa: S105 - a name
_AT_ONCE: Final = 16
_MOST_BYTES: Final = 16 << 20
_ANSWER_SECONDS: Final = 10.0
RIGHTS: Final = "bind the roles gpushare-view of the chart: docs/how-to/kubectl.md"
INSTALL: Final = (
    "set metrics.enabled=true in the chart, or use another --system-namespace: "
    "docs/how-to/kubectl.md"
)


class ClusterError(UserError):
    """The API server does not answer, or refuses what every answer depends on."""


class NoFigures(UserError):
    """A node's exporter does not answer; the message has the reason and, if known, the fix."""


@dataclass
class ClusterNode:
    """A node that has gpushare; `problem` is why its rows are incomplete, empty: they are not."""

    name: str
    body: Object | None  # None: no such node any longer
    agents: list[Object] = field(default_factory=list)  # the chart's pods on it
    pods: list[Object] = field(default_factory=list)  # all of it, if its figures are not known
    figures: NodeFigures | None = None
    problem: str = ""

    @property
    def mode(self) -> str:
        """The mode in its label: annotations, plugin or dra; empty: gpushare-node wrote none."""
        labels = {} if self.body is None else self.body["metadata"].get("labels") or {}
        return str(labels.get(MODE_LABEL) or "")

    @property
    def is_ready(self) -> bool:
        """Whether its kubelet reports to the API server."""
        status = {} if self.body is None else self.body.get("status") or {}
        conditions = status.get("conditions") or []
        return not any(one["type"] == "Ready" and one["status"] != "True" for one in conditions)


class ClusterSurvey:
    """Reads a cluster; `only` is the name of one node, empty: all of them.

    `namespace` is that of the chart. A pod of any other one could claim to be an exporter.
    """

    def __init__(self, api: ApiServer, namespace: str, only: str = "") -> None:
        self._api = api
        self._namespace = namespace
        self._only = only
        self._tokens: dict[tuple[str, str], str] = {}
        self.nodes = self._find()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(self._ask, self.nodes))

    def cards(self) -> list[ClusterCard]:
        """Return the cards of all nodes, by node and index."""
        return [card for node in self.nodes for card in self._cards(node)]

    def containers(self) -> list[ClusterContainer]:
        """Return the containers of all nodes, by namespace, pod and container."""
        found = [one for node in self.nodes for one in self._containers(node)]
        return sorted(found, key=_order)

    def _find(self) -> list[ClusterNode]:
        bodies = {one["metadata"]["name"]: one for one in self._all(NODES)}
        if self._only and self._only not in bodies:
            raise ClusterError(
                f"--node {self._only}: the cluster has no node of this name",
                code=ErrorCode.NOT_FOUND,
            )
        selected = {"labelSelector": f"{LABEL} in ({AGENT},{EXPORTER})"}
        pods = self._all(path_of(PODS, "", self._namespace), selected)
        of_node: dict[str, list[Object]] = {}
        for pod in pods:
            if all(container["name"] != _REMOVED for container in pod["spec"]["containers"]):
                of_node.setdefault(pod["spec"].get("nodeName") or "", []).append(pod)
        names = {name for name, body in bodies.items() if _has_gpushare(body)} | set(of_node)
        names |= {one["spec"]["pool"]["name"] for one in self._slices}
        wanted = {self._only} if self._only else names - {""}
        if not wanted <= names:
            raise ClusterError(
                f"--node {self._only}: gpushare is not on this node", code=ErrorCode.NOT_FOUND
            )
        return [
            ClusterNode(name, bodies.get(name), of_node.get(name, [])) for name in sorted(wanted)
        ]

    @cached_property
    def _slices(self) -> list[Object]:
        return self._all(SLICES, {"fieldSelector": f"spec.driver={DRIVER}"})

    @cached_property
    def _claims(self) -> list[Object]:
        return self._all(CLAIMS)

    def _all(self, collection: str, query: Query | None = None) -> list[Object]:
        """Return a collection; empty if the API server is too old for it."""
        try:
            return self._api.all_of(collection, query)[0]
        except ApiNotFound:
            return []
        except ApiForbidden as error:
            is_known = error.status == HTTPStatus.FORBIDDEN
            fix = RIGHTS if is_known else "log in again, or use another --context"
            raise ClusterError(f"{error.said}. Fix: {fix}", code=ErrorCode.FORBIDDEN) from error
        except ApiError as error:
            raise ClusterError(
                f"the API server does not answer: {error.said}", code=ErrorCode.UNREACHABLE
            ) from error

    # --- the exporters ---

    def _ask(self, node: ClusterNode) -> None:
        """Read the figures of a node, or note why there are none."""
        try:
            node.figures = self._scrape(node)
            node.problem = node.figures.problem
        except NoFigures as error:
            node.problem = f"{'' if node.is_ready else 'the node is not Ready, and '}{error}"
        if node.figures is None or not node.figures.versions:
            node.pods = self._all(PODS, {"fieldSelector": f"spec.nodeName={node.name}"})
            counted = allocations.counted_memory(node.body or {}, node.pods)
            node.problem += f"; {counted}" if counted else ""

    def _scrape(self, node: ClusterNode) -> NodeFigures:
        pod = _exporter(node)
        metadata = pod["metadata"]
        name = f"{metadata['namespace']}/{metadata['name']}"
        target = f"{quote(metadata['name'], safe='')}:{_metrics_port(pod)}"
        path = f"{path_of(PODS, '', metadata['namespace'])}/{target}/proxy/rows"
        try:
            token = self._token(pod)
            text = self._text(path, {TOKEN_HEADER: token} if token else {})
            return node_figures(node.name, text)
        except ApiForbidden as error:
            if error.reason:  # a Status: it is the API server that refuses
                raise NoFigures(f"{error.said}. Fix: {RIGHTS}") from error
            raise NoFigures(f"{name} refuses: {error.said}") from error
        except ApiError as error:
            raise NoFigures(f"{name} does not answer: {error.said}") from error
        except BadFigures as error:
            raise NoFigures(f"the answer of {name} is {error}") from error

    def _token(self, pod: Object) -> str:
        """Return the exporter's token, from the Secret that its pod mounts; "": it has none."""
        for volume in pod["spec"].get("volumes") or []:
            if volume["name"] == _TOKEN and volume.get("secret"):
                place = (pod["metadata"]["namespace"], volume["secret"]["secretName"])
                if place not in self._tokens:
                    secret = self._api.get(path_of(SECRETS, place[1], place[0]))
                    self._tokens[place] = _decoded(secret)
                return self._tokens[place]
        return ""

    def _text(self, path: str, headers: Mapping[str, str]) -> str:
        request = ApiRequest("GET", path)
        connection = self._api.open_connection(_ANSWER_SECONDS)
        try:
            with Deadline(connection, _ANSWER_SECONDS):
                response = self._api.send(connection, request, headers)
                content = response.read(_MOST_BYTES)
        except FAILURES as error:
            raise ApiError(f"no answer within {_ANSWER_SECONDS:g} s") from error
        finally:
            connection.close()
        text = content.decode("utf-8", "replace")
        if response.status != HTTPStatus.OK:
            raise refusal(str(request), response.status, _status(text))
        return text

    # --- rows ---

    def _cards(self, node: ClusterNode) -> list[ClusterCard]:
        if node.figures is not None and node.figures.cards:
            return sorted(node.figures.cards, key=lambda card: card["index"])
        if node.body is None:
            return []
        sliced = allocations.sliced_cards(node.name, self._slices, self._claims)
        return sliced or allocations.labelled_cards(node.body)

    def _containers(self, node: ClusterNode) -> list[ClusterContainer]:
        if node.figures is not None and node.figures.versions:
            return node.figures.containers
        found = []
        for pod in node.pods:
            rows = allocations.claimed_containers(pod, self._slices, self._claims)
            rows += allocations.counted_containers(pod)
            found += rows or allocations.annotated_containers(pod)
        return found


def _has_gpushare(node: Object) -> bool:
    labels = node["metadata"].get("labels") or {}
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    prefix = RESOURCE.rpartition("-")[0] + "-"
    return MODE_LABEL in labels or any(name.startswith(prefix) for name in allocatable)


def _exporter(node: ClusterNode) -> Object:
    """Return the exporter's pod that runs on a node; NoFigures if there is none."""
    found = [one for one in node.agents if one["metadata"]["labels"][LABEL] == EXPORTER]
    if not found:
        waiting = [one for one in node.agents if not _is_running(one)]
        if waiting:
            raise NoFigures(_waiting(waiting[0]))
        raise NoFigures(f"no exporter runs on it. Fix: {INSTALL}")
    running = [one for one in found if _is_running(one)]
    if not running:
        raise NoFigures(_waiting(found[0]))
    return running[0]


def _is_running(pod: Object) -> bool:
    return bool(
        (pod.get("status") or {}).get("phase") == "Running"
        and not pod["metadata"].get("deletionTimestamp")
    )


def _waiting(pod: Object) -> str:
    """Return why a pod does not run, as `kubectl get pods` shows it."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    statuses = [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]
    reasons = [
        (one["state"].get("waiting") or one["state"].get("terminated") or {}).get("reason")
        for one in statuses
        if one.get("state") and not one.get("ready")
    ]
    reason = next((one for one in reasons if one and one != "PodInitializing"), "")
    shown = "Terminating" if metadata.get("deletionTimestamp") else status.get("phase", "unknown")
    return f"pod {metadata['namespace']}/{metadata['name']} is {reason or shown}"


def _metrics_port(pod: Object) -> int:
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or []:
            if port.get("name") == _PORT:
                return int(port["containerPort"])
    name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    raise NoFigures(f'pod {name} has no port of the name "{_PORT}"')


def _decoded(secret: Object) -> str:
    try:
        return base64.b64decode((secret.get("data") or {})[_TOKEN]).decode("ascii").strip()
    except (KeyError, binascii.Error, UnicodeDecodeError) as error:
        name = f"{secret['metadata']['namespace']}/{secret['metadata']['name']}"
        raise NoFigures(f'Secret {name} has no key "{_TOKEN}" with a token') from error


def _status(text: str) -> Any:
    """Return the Status in an answer, or the text of an answer that is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text.strip()


def _order(one: ClusterContainer) -> tuple[str, str, str, str, int]:
    index = -1 if one["index"] is None else one["index"]
    return one["namespace"], one["pod"], one["container"], one["node"], index


def problems(nodes: Sequence[ClusterNode]) -> list[str]:
    """Return a line for each problem, with the nodes that have it."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        if node.problem:
            found.setdefault(node.problem, []).append(node.name)
    return [f"{', '.join(names)}: {problem}" for problem, names in found.items()]
