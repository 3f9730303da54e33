# SPDX-License-Identifier: Apache-2.0
"""`gpushare-node --templates`: makes the ResourceClaimTemplates that waiting pods name.

An admission policy gives a pod with another vendor's keys the name of a template that says the
request itself. Here it is made, and Kubernetes' own claim controller does the rest. Creating is
idempotent: two instances may run. A pod owns its template, so nothing is left behind.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NoReturn

from gpushare.errors import UserError
from gpushare.kubernetes import StatusLog
from gpushare.kubernetes.api.events import WARNING, EventRecorder, KubernetesEvent, PodContainer
from gpushare.kubernetes.api.server import (
    ApiError,
    ApiExists,
    ApiServer,
    Object,
    WatchedObjects,
    path_of,
    pauses,
)
from gpushare.kubernetes.api.slices import (
    API_VERSION,
    CORES,
    MEMORY,
    MEMORY_STEP,
    SLICES,
    format_quantity,
    parse_quantity,
)
from gpushare.protocol.kubernetes import DRIVER

#: gpushare-MEMORY-CORES-CARDS: memory and percent of compute of each card, and how many cards.
NAME: Final = re.compile(
    r"gpushare-(?:(?P<mib>[1-9][0-9]{0,8})mi|(?P<percent>[1-9][0-9]?)pct|all)"
    r"-(?P<cores>0|[1-9][0-9]?|100)-(?P<cards>[1-9]|1[0-6])",
    re.ASCII,
)
REQUEST: Final = "gpu"
#: Of a request. Source: resource.k8s.io/v1, FirstAvailableDeviceRequestMaxSize.
ALTERNATIVES_MOST: Final = 8
PODS: Final = "/api/v1/pods"
WANTED: Final = {"labelSelector": "gpushare.io/templates=wanted", "fieldSelector": "spec.nodeName="}
TEMPLATES: Final = f"/apis/{API_VERSION}/resourceclaimtemplates"
#: What still waits is made again: somebody may have deleted it, or its owner.
AGAIN_SECONDS: Final = 2.0
REFUSED_SECONDS: Final = 30.0
REASON: Final = "GpuTemplateRefused"
#: Of a quota, a policy or a webhook. What else fails may pass.
_REFUSALS: Final = frozenset((400, 403, 422))
#: Source: NamespaceLifecycle in k8s.io/apiserver, the message of its 403.
_TERMINATING: Final = "because it is being terminated"
#: Each request is repeated here, by namespace: none may hold up the pods of another for long.
ANSWER_SECONDS: Final = 5.0
SLOW_SECONDS: Final = 1.0


def content(name: str, devices: Collection[Object] = ()) -> Object | None:
    """Return the `spec` of the template `name`; None if it is none of ours, or has no card yet.

    A percentage of a card's memory becomes one alternative for each different memory among
    `devices`, the largest first. Each selects cards by their memory, not by the model: cards of one
    model differ in what a node reserves. It takes those up to the next larger one, so a card that
    comes later, or that changes, gives a bit less than the percentage and never more. The amount is
    rounded down, as gpushared does (placement/request.py), to a whole MiB, as grants are.
    """
    match = NAME.fullmatch(name)
    if match is None:
        return None
    cores, cards = match["cores"], int(match["cards"])
    if match["percent"]:
        alternatives = _alternatives(int(match["percent"]), cores, cards, devices)
        if not alternatives:
            return None
        request: Object = {"name": REQUEST, "firstAvailable": alternatives}
    else:
        # Without an amount of memory a claim has all of it, and without cores none is guaranteed.
        amounts = {MEMORY: f"{match['mib']}Mi"} if match["mib"] else {}
        if amounts or cores != "0":
            amounts[CORES] = cores
        request = {"name": REQUEST, "exactly": _exactly(cards, amounts)}
    claimed: Object = {"requests": [request]}
    if cards > 1:
        claimed["constraints"] = [{"requests": [REQUEST], "distinctAttribute": f"{DRIVER}/uuid"}]
    return {"spec": {"devices": claimed}}


def _exactly(cards: int, amounts: Object) -> Object:
    capacity = {"capacity": {"requests": amounts}} if amounts else {}
    return {"deviceClassName": "gpushare", "count": cards, **capacity}


def _alternatives(
    percent: int, cores: str, cards: int, devices: Collection[Object]
) -> list[Object]:
    memories = [(one.get("capacity") or {}).get(MEMORY) or {} for one in devices]
    found = {parse_quantity(str(memory.get("value", "0"))) for memory in memories}
    sizes = sorted(found - {0}, reverse=True)
    while len(sizes) > ALTERNATIVES_MOST:  # leave out the one that the next smaller is nearest to
        gaps = [larger / smaller for larger, smaller in pairwise(sizes)]
        del sizes[gaps.index(min(gaps))]
    made = []
    compared = f'device.capacity["{DRIVER}"].{MEMORY}.compareTo(quantity("%s"))'
    for number, size in enumerate(sizes):
        expression = f"{compared % format_quantity(size)} >= 0"
        if number:
            expression += f" && {compared % format_quantity(sizes[number - 1])} < 0"
        mib = max(1, size * percent // 100 // MEMORY_STEP)
        made.append(
            {
                "name": f"{REQUEST}-{number}",
                **_exactly(cards, {MEMORY: f"{mib}Mi", CORES: cores}),
                "selectors": [{"cel": {"expression": expression}}],
            }
        )
    return made


def template(name: str, spec: Object, pod: Object) -> Object:
    """Return the template, owned by `pod`; no annotations: 1.36.2 writes into its cached ones."""
    of_pod = pod["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": of_pod["name"], "uid": of_pod["uid"]}
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceClaimTemplate",
        "metadata": {
            "name": name,
            "namespace": of_pod["namespace"],
            "labels": {"app.kubernetes.io/managed-by": "gpushare"},
            "ownerReferences": [owner],
        },
        "spec": spec,
    }


def wanted_by(pod: Object) -> set[str]:
    """Return the names of the templates of ours from which a pod has no claim yet."""
    if pod["metadata"].get("deletionTimestamp"):
        return set()
    made = {one["name"] for one in (pod.get("status") or {}).get("resourceClaimStatuses") or []}
    return {
        name
        for claim in pod["spec"].get("resourceClaims") or []
        if NAME.fullmatch(name := str(claim.get("resourceClaimTemplateName") or ""))
        and claim["name"] not in made
    }


def reduced(pod: Object) -> Object:
    """Return what is needed of a pod: thousands may wait."""
    names = ("name", "namespace", "uid", "deletionTimestamp")
    status = pod.get("status") or {}
    return {
        "metadata": {key: pod["metadata"][key] for key in names if key in pod["metadata"]},
        "spec": {"resourceClaims": pod["spec"].get("resourceClaims")},
        "status": {"resourceClaimStatuses": status.get("resourceClaimStatuses")},
    }


@dataclass
class _Attempt:
    due: float  # when it is made again
    pods: frozenset[str]  # that waited for it; for any other it is made at once


@dataclass
class _Backoff:
    until: float = 0.0
    waits: Iterator[float] = field(default_factory=lambda: pauses(REFUSED_SECONDS))


class TemplateMaker:
    """Makes templates, one step at a time. `node` is where it runs, for the events."""

    def __init__(
        self,
        api: ApiServer,
        log: StatusLog,
        node: str,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._api, self._log, self._clock, self._now = api, log, clock, now
        self._recorder = EventRecorder(api, node, clock)
        self._attempts: dict[tuple[str, str], _Attempt] = {}
        self._backoffs: dict[str, _Backoff] = {}  # by namespace

    def step(self, pods: Sequence[Object], devices: Collection[Object]) -> None:
        """Make what `pods` wait for and is due; no error of the API server is raised."""
        wanted: dict[tuple[str, str], list[Object]] = {}
        for pod in pods:
            for name in sorted(wanted_by(pod)):
                wanted.setdefault((pod["metadata"]["namespace"], name), []).append(pod)
        self._attempts = {key: kept for key, kept in self._attempts.items() if key in wanted}
        spaces = {namespace for namespace, _ in wanted}
        self._backoffs = {key: kept for key, kept in self._backoffs.items() if key in spaces}
        new = _Attempt(0.0, frozenset())  # before all that were tried: one may fail for ever
        for key in sorted(wanted, key=lambda one: self._attempts.get(one, new).due):
            (namespace, name), waiting = key, wanted[key]
            uids, now = frozenset(pod["metadata"]["uid"] for pod in waiting), self._clock()
            backoff, tried = self._backoffs.get(namespace), self._attempts.get(key, new)
            if (backoff and now < backoff.until) or (now < tried.due and uids <= tried.pods):
                continue
            spec = content(name, devices)
            if spec is None:
                self._log.note("cards", "pods with a percentage wait for a card in a ResourceSlice")
                continue
            wait = self._make(template(name, spec, waiting[0]), waiting)
            ended = self._clock()
            self._attempts[key] = _Attempt(ended + wait, uids)
            if wait and ended - now > SLOW_SECONDS:  # other namespaces get as much time
                self._backoffs.setdefault(namespace, _Backoff()).until = 2 * ended - now

    def _make(self, body: Object, waiting: Sequence[Object]) -> float:
        """Return after how many seconds to make it again; 0: when its namespace may again."""
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        try:
            self._api.create(path_of(TEMPLATES, namespace=namespace), body)
        except ApiExists:
            pass
        except UserError as error:
            said = error.said if isinstance(error, ApiError) else str(error)
            if _TERMINATING in said:
                return REFUSED_SECONDS
            self._log.note(f"namespace {namespace}", f"template {namespace}/{name}: {said}")
            if isinstance(error, ApiError) and error.status in _REFUSALS:
                self._tell(f"template {name}: {said}", waiting)
                return REFUSED_SECONDS
            backoff = self._backoffs.setdefault(namespace, _Backoff())
            pause = max(next(backoff.waits), getattr(error, "retry_after", 0.0))
            backoff.until = self._clock() + pause
            return 0.0
        self._backoffs.pop(namespace, None)
        return AGAIN_SECONDS

    def _tell(self, message: str, waiting: Sequence[Object]) -> None:
        """Record an event on each pod; the recorder writes the same one once."""
        for pod in waiting:
            of_pod = pod["metadata"]
            about = PodContainer(of_pod["namespace"], of_pod["name"], of_pod["uid"], "")
            event = KubernetesEvent(about, REASON, WARNING, message, self._now(), number="")
            try:
                self._recorder.record(event)
            except UserError as error:
                self._log.note("event", str(error))
                return  # with the next refusal


def serve(api: ApiServer, log: StatusLog, node: str) -> NoReturn:
    """Follow pods and cards, and make templates, until a signal ends the process."""
    changed = threading.Event()
    pods = WatchedObjects(api, PODS, WANTED, changed=changed.set, kept=reduced)
    of_this_driver = {"fieldSelector": f"spec.driver={DRIVER}"}
    slices = WatchedObjects(api, SLICES, of_this_driver, changed=changed.set)
    maker = TemplateMaker(api, log, node)
    pods.start()
    slices.start()
    while True:
        changed.wait(AGAIN_SECONDS)
        changed.clear()
        devices = [one for body in slices.objects() for one in body["spec"].get("devices") or []]
        maker.step(pods.objects(), devices)
