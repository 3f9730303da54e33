# SPDX-License-Identifier: Apache-2.0
"""`kubectl gpushare` beside a real kubectl: what it shows of a cluster, and of what is silent."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from gpushare.cli.kubectl import PS_HEADINGS
from gpushare.cli.status import LS_HEADINGS
from gpushare.exporter.metric_family import Snapshot
from gpushare.http_server import HttpRequest, HttpServer, Response
from gpushare.kubernetes.api.slices import SLICES, devices_of
from gpushare.kubernetes.cluster.figures import BadFigures, node_figures
from gpushare.kubernetes.cluster.survey import INSTALL
from gpushare.listen_address import is_authorized
from gpushare.protocol.kubernetes import DRIVER
from tests.stack.api_server import StandInApiServer
from tests.stack.claims import AllocatedPart, ScheduledClaim
from tests.stack.kubectl import Kubectl, put_exporter, put_node
from tests.unit.exporter import made as figures
from tests.unit.kubernetes import made

pytestmark = pytest.mark.needs("kubectl")

TOKEN = "a-token-of-the-exporter"


@contextmanager
def exporter(snapshot: Snapshot, token: str) -> Iterator[tuple[str, int]]:
    """Serve what an exporter would say; yield the address."""

    def answer(request: HttpRequest) -> Response:
        if not is_authorized(request.headers, token.encode()):
            return Response(HTTPStatus.UNAUTHORIZED)
        assert request.path == "/rows"
        return Response(body=json.dumps(snapshot.document()).encode())

    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    server = HttpServer(listener, answer)
    thread = threading.Thread(target=server.serve)
    thread.start()
    with listener:
        yield listener.getsockname()
        server.stop()
        thread.join()


@pytest.fixture
def kubectl(tmp_path: Path, cluster: StandInApiServer) -> Kubectl:
    return Kubectl(tmp_path, cluster, token="operator")


POD = {"namespace": "team", "name": "train-0", "uid": "uid-1", "container": "main"}


@pytest.fixture
def busy() -> Iterator[tuple[str, int]]:
    """The exporter of a node with two cards and two containers."""
    tenants = [
        figures.tenant(pod=POD),
        figures.tenant("train", id="host-1", engine="host", interventions=[{"by": "operator"}]),
    ]
    cards = [
        figures.card(),
        figures.card(1, burst_granted_bytes=0, mode="unused", cordoned=True, health="XID 79"),
    ]
    with exporter(figures.snapshot(*tenants, cards=cards), TOKEN) as address:
        yield address


def rows(text: str) -> list[str]:
    """Return the rows of a table with two spaces between cells."""
    return [re.sub(r" {2,}", "  ", line) for line in text.splitlines()]


def test_the_cards_of_a_node_are_as_its_exporter_reports_them(
    kubectl: Kubectl, cluster: StandInApiServer, busy: tuple[str, int]
) -> None:
    put_node(cluster, "gpu-1", "plugin")
    put_node(cluster, "cpu-1", "", is_ready=True)
    del cluster.objects["/api/v1/nodes/cpu-1"]["metadata"]["labels"]
    put_exporter(cluster, "gpu-1", busy, token=TOKEN)
    done = kubectl.run("gpushare", "ls")
    assert done.stderr == ""
    assert rows(done.stdout) == [
        "  ".join(["NODE", *LS_HEADINGS]),
        "gpu-1  0  H200  140 GiB  12 GiB  2 GiB  3 GiB  128 GiB  90 %  2/16  shared  ok",
        "gpu-1  1  H200  140 GiB  12 GiB  0 B  3 GiB  -  90 %  2/16  unused,cordoned  XID 79",
    ]
    assert done.returncode == 4  # a card has a problem
    wide = rows(kubectl.run("gpushare", "ls", "-o", "wide").stdout)[1]
    assert wide.endswith(f"  {figures.UUID}  plugin  0.1.0  580.159.04")


def test_containers_are_those_of_the_contexts_namespace_unless_all_are_wanted(
    kubectl: Kubectl, cluster: StandInApiServer, busy: tuple[str, int]
) -> None:
    put_node(cluster, "gpu-1", "plugin")
    put_exporter(cluster, "gpu-1", busy, token=TOKEN)
    of_card = "gpu-1  0  3.0/4.0+2.0 GiB"
    last = "burst-share  25 %  interposer"
    train = f"team  train-0  main  {of_card}  ~30/30 %  {last}"
    host = f"-  -  train  {of_card}  paused  {last}"
    done = kubectl.run("gpushare", "ps")
    assert rows(done.stdout) == ["  ".join(PS_HEADINGS), train]
    assert (done.stderr, done.returncode) == ("", 0)
    assert rows(kubectl.run("gpushare", "ps", "-A").stdout)[1:] == [host, train]
    assert rows(kubectl.run("gpushare", "ps", "--namespace=team").stdout)[1:] == [train]
    none = kubectl.run("gpushare", "ps", "-n", "web")
    assert (none.stdout, none.returncode) == ("", 0)
    assert none.stderr == "no container in namespace web uses a GPU of gpushare.\n"
    wide = kubectl.run("gpushare", "ps", "-o", "wide")
    assert rows(wide.stdout)[1].endswith("  offline 5  2  no  4f5e00000000")


def test_a_node_that_does_not_answer_has_rows_and_the_reason(
    kubectl: Kubectl, cluster: StandInApiServer, busy: tuple[str, int]
) -> None:
    put_node(cluster, "gpu-1", "plugin")
    put_exporter(cluster, "gpu-1", busy, token=TOKEN)
    sizes = {"gpushare.io/memory-gib": "280"}
    labels = {"gpu.count": "2", "gpu.product": "NVIDIA-H200", "gpu.memory": str(140 << 10)}
    put_node(cluster, "gpu-2", "plugin", sizes, labels=labels)
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    crashing = {"phase": "Running", "containerStatuses": [{"ready": False, "state": waiting}]}
    put_exporter(cluster, "gpu-2", status={**crashing, "phase": "Pending"})
    put_node(cluster, "gpu-3", "annotations", is_ready=False)
    put_exporter(cluster, "gpu-3")  # runs, and nothing answers at its port
    put_node(cluster, "gpu-4", "annotations")
    cluster.put(
        "/api/v1/namespaces/team/pods/infer-0",
        {
            "spec": {
                "nodeName": "gpu-2",
                "containers": [
                    {"name": "main", "resources": {"limits": {"gpushare.io/memory-gib": "12"}}},
                    {"name": "log", "resources": {"limits": {"cpu": "1"}}},
                ],
            },
            "status": {"phase": "Running"},
        },
    )
    cluster.put(
        "/api/v1/namespaces/team/pods/noted-0",
        {
            "metadata": {"annotations": {"gpushare.io/memory": "4GiB"}},
            "spec": {"nodeName": "gpu-4", "containers": [{"name": "main"}]},
        },
    )
    done = kubectl.run("gpushare", "ls")
    table = rows(done.stdout)
    assert [row[:14] for row in table[1:3]] == ["gpu-1  0  H200", "gpu-1  1  H200"]
    unknown = "NVIDIA-H200  140 GiB" + "  -" * 8
    assert table[3:] == [f"gpu-2  {card}  {unknown}" for card in (0, 1)]
    place = "gpushare-system/gpushare-exporter-gpu"
    allocated = "the scheduler has allocated 12 GiB of 280 GiB"
    silent = "error trying to reach service"
    assert done.stderr.splitlines() == [
        f"kubectl gpushare: {line}"
        for line in (
            f"gpu-2: pod {place}-2 is CrashLoopBackOff; {allocated}",
            f"gpu-3: the node is not Ready, and {place}-3 does not answer: {silent}",
            f"gpu-4: no exporter runs on it. Fix: {INSTALL}",
        )
    ]
    assert done.returncode == 4
    shown = kubectl.run("gpushare", "ps")
    assert shown.returncode == 4
    assert shown.stderr == done.stderr
    assert rows(shown.stdout)[1:] == [
        "team  infer-0  main  gpu-2  -  -/12 GiB  -  -  -  -",
        "team  noted-0  main  gpu-4" + "  -" * 6,
        rows(shown.stdout)[3],
    ]
    one = kubectl.run("gpushare", "ls", "--node", "gpu-1")
    assert one.stderr == ""
    assert {row.partition(" ")[0] for row in rows(one.stdout)[1:]} == {"gpu-1"}


def put_slice(cluster: StandInApiServer, node: str, *cards: dict[str, Any]) -> None:
    """Store the slice that gpushare-node publishes for these rows of gpushared."""
    pool = {"name": node, "generation": 3, "resourceSliceCount": 1}
    devices = devices_of(made.node(*cards))
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    cluster.put(f"{SLICES}/{node}-{DRIVER}-x", {"spec": spec})


def test_slices_and_claims_say_what_is_allocated_on_a_node_that_does_not_answer(
    kubectl: Kubectl, cluster: StandInApiServer
) -> None:
    put_node(cluster, "gpu-1", "dra")
    cards = [made.card(0), made.card(1, is_schedulable=False, schedulable_reason="cordoned: fan")]
    put_slice(cluster, "gpu-1", *cards)
    claim = ScheduledClaim(
        cluster, "half", "gpu-1", [AllocatedPart(cards[0]["uuid"], "70Gi")], "team"
    )
    claim.reserve("uid-1")
    cluster.put(
        "/api/v1/namespaces/team/pods/train-0",
        {
            "spec": {
                "nodeName": "gpu-1",
                "containers": [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}],
                "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "half"}],
            },
            "status": {
                "phase": "Running",
                "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "half"}],
            },
        },
    )
    done = kubectl.run("gpushare", "ls")
    assert rows(done.stdout)[1:] == [
        "gpu-1  0  NVIDIA H200  139 GiB  70 GiB  -  69 GiB  40 %  1/16  -  -",
        "gpu-1  1  NVIDIA H200  139 GiB  0 B  -  -  0 %  0/16  -,cordoned  -",
    ]
    assert done.returncode == 4
    assert rows(kubectl.run("gpushare", "ps").stdout)[1:] == [
        "team  train-0  main  gpu-1  0  -/70 GiB  -/40 %  -  -  -"
    ]


@pytest.mark.parametrize(
    ("refused", "wanted", "code"),
    [
        (("/api/v1/nodes", 403), "Injected. Fix: bind the roles gpushare-view", 3),
        (("/api/v1/nodes", 401), "Injected. Fix: log in again", 3),
        (("/api/v1/nodes", 503), "the API server does not answer: Injected", 1),
        (("/proxy/rows", 403), "gpu-1: Injected. Fix: bind the roles gpushare-view", 4),
        (("/secrets/", 403), "gpu-1: Injected. Fix: bind the roles gpushare-view", 4),
    ],
)
def test_a_refusal_has_its_fix_and_status(
    kubectl: Kubectl,
    cluster: StandInApiServer,
    busy: tuple[str, int],
    refused: tuple[str, int],
    wanted: str,
    code: int,
) -> None:
    put_node(cluster, "gpu-1", "plugin")
    put_exporter(cluster, "gpu-1", busy, token=TOKEN)
    cluster.fault = lambda _, path: refused[1] if refused[0] in path else None
    done = kubectl.run("gpushare", "ls")
    assert wanted in done.stderr
    assert done.returncode == code


@pytest.mark.parametrize("text", ["", "<html>", "[]", "{}", '{"daemon": 1}'])
def test_an_answer_that_is_not_an_exporters_is_a_problem_of_its_node(text: str) -> None:
    with pytest.raises(BadFigures, match=r"not a gpushare-exporter's|another version"):
        node_figures("gpu-1", text)


def test_a_pod_outside_the_charts_namespace_is_not_asked(
    kubectl: Kubectl, cluster: StandInApiServer, busy: tuple[str, int]
) -> None:
    put_node(cluster, "gpu-1", "plugin")
    put_exporter(cluster, "gpu-1", busy, token=TOKEN, namespace="team")
    done = kubectl.run("gpushare", "ls")
    assert done.stderr == f"kubectl gpushare: gpu-1: no exporter runs on it. Fix: {INSTALL}\n"
    assert not any("/proxy/" in request for request in cluster.requests)
    done = kubectl.run("gpushare", "ls", "--system-namespace", "team")
    assert len(rows(done.stdout)) == 3


def test_verify_asks_through_kubectl_and_says_what_is_wrong(
    kubectl: Kubectl, cluster: StandInApiServer
) -> None:
    kinds = [
        {"name": name, "kind": kind, "namespaced": kind == "Pod", "verbs": ["get", "list"]}
        for name, kind in (("nodes", "Node"), ("pods", "Pod"))
    ]
    # What kubectl discovers before it asks for an object.
    cluster.objects["/api"] = {"kind": "APIVersions", "versions": ["v1"]}
    cluster.objects["/apis"] = {"kind": "APIGroupList", "groups": []}
    cluster.objects["/api/v1"] = {"kind": "APIResourceList", "resources": kinds}
    done = kubectl.run("gpushare", "verify")
    first, *rest = done.stdout.splitlines()
    assert first == "fail  no node has the label gpushare.io/mode: gpushare-node writes it"
    assert all(line.startswith("note  ") for line in rest)
    assert done.returncode == 1
    broken = kubectl.run("gpushare", "verify", "--context=none")
    assert broken.stderr == (
        "gpushare: kubectl get: Error in configuration: context was not found for specified "
        "context: none\n"
    )
    assert broken.returncode == 1
