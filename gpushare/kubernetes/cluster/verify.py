# SPDX-License-Identifier: Apache-2.0
"""`kubectl gpushare verify`: on each node, pods share the cards, and what must not start does not.

The pods are in a namespace of their own, which is deleted at the end, and run the image of the
chart, which the nodes have. What gpushared has of them is asked in the pod of gpushare-node.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, NamedTuple, Protocol

from gpushare.kubernetes.api.server import Object
from gpushare.kubernetes.cluster.kubectl import Answer, KubectlError
from gpushare.kubernetes.cluster.survey import AGENT, LABEL
from gpushare.protocol.kubernetes import DRIVER, MODE_LABEL, RESOURCE

#: What has run on a real cluster, and what never has; docs/how-to/try-on-a-cluster.md has both.
SEEN: Final = (
    "Kubernetes 1.36.2 on one node, in the modes plugin and dra, with helm 4.2",
    "containerd 1.7.24 with runc 1.1.5, under systemd, with cgroup v1",
    "simulated cards; 64 pods at once, upgrades, rollbacks, reboots, and the removal",
)
NEVER: Final = (
    "Kubernetes 1.34 and 1.35, and 1.37 or newer",
    "several nodes, and cgroup v2",
    "CRI-O, containerd 2.x, k3s, RKE2, k0s and MicroK8s",
    "NVIDIA's GPU operator, and a real card",
)
_KNOWN: Final = ("v1.36.", "containerd://1.7.")  # of a node's versions
_CLASSES: Final = {"annotations": "gpushare", "plugin": "gpushare-plugin", "dra": "gpushare-dra"}
_DEVICE_CLASS: Final = "gpushare"
_GIB: Final = 1 << 30
_TOO_MUCH_GIB: Final = 1 << 14  # for any card
_START_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 1.0
_CONTAINER: Final = "gpushare-node"

Level = Literal["ok", "note", "fail"]


class Finding(NamedTuple):
    """One result; `fail` is a defect of gpushare or of its installation."""

    level: Level
    text: str


class KubectlCall(Protocol):
    """Runs kubectl with words, and with objects that it reads."""

    def __call__(self, *words: str, objects: Any = None) -> Answer:
        """Return how it ended."""


class ClusterTrial:
    """One run of `verify`; `system` is the namespace of the chart, `only` one node or empty."""

    def __init__(
        self,
        kubectl: KubectlCall,
        system: str,
        only: str = "",
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kubectl, self._system, self._only = kubectl, system, only
        self._pause, self._clock = pause, clock
        self._namespace = f"gpushare-verify-{secrets.token_hex(3)}"

    def run(self) -> Iterator[Finding]:
        """Yield each finding as it is made; KubectlError if the cluster cannot be asked."""
        nodes = [node for node in self._list("nodes") if self._is_meant(node)]
        agents = self._list("pods", f"--namespace={self._system}", f"--selector={LABEL}={AGENT}")
        if not nodes:
            yield Finding("fail", f"no node has the label {MODE_LABEL}: gpushare-node writes it")
        if nodes:
            self._asked("create", "namespace", self._namespace)
            try:
                yield from self._admission(nodes[0], agents)
                for node in nodes:
                    yield from self._node(node, agents)
            finally:
                self._kubectl("delete", "namespace", self._namespace, "--wait=false")
        yield from (Finding("note", f"ran on a real cluster before: {text}") for text in SEEN)
        yield from (Finding("note", f"never ran on a real cluster: {text}") for text in NEVER)

    def _is_meant(self, node: Object) -> bool:
        metadata = node["metadata"]
        return MODE_LABEL in (metadata.get("labels") or {}) and (
            self._only in {"", metadata["name"]}
        )

    def _node(self, node: Object, agents: list[Object]) -> Iterator[Finding]:
        name = node["metadata"]["name"]
        information = node["status"]["nodeInfo"]
        versions = information["kubeletVersion"], information["containerRuntimeVersion"]
        news = [one for one in versions if not one.startswith(_KNOWN)]
        yield Finding("note", f"{name}: {', '.join(versions)}, {information['osImage']}")
        yield from (Finding("note", f"{name}: gpushare has not run with {one}") for one in news)
        mode = node["metadata"]["labels"][MODE_LABEL]
        agent = _agent_of(name, agents)
        if agent is None:
            yield Finding("fail", f"{name}: no pod of gpushare-node is ready on it")
            return
        yield self._offer(node, mode)
        yield from self._checked(name, agent)
        yield from self._pods(node, mode, agent)

    def _offer(self, node: Object, mode: str) -> Finding:
        """Check that the scheduler knows the node's cards."""
        name = node["metadata"]["name"]
        if mode == "annotations":
            return Finding("ok", f"{name}: mode annotations, in which the scheduler counts nothing")
        if mode == "plugin":
            amount = node["status"].get("allocatable", {}).get(RESOURCE, "0")
            level: Level = "ok" if amount != "0" else "fail"
            return Finding(level, f"{name}: mode plugin, {amount} of {RESOURCE} are allocatable")
        slices = [
            one["spec"]
            for one in self._list("resourceslices.resource.k8s.io")
            if one["spec"]["driver"] == DRIVER and one["spec"].get("nodeName") == name
        ]
        cards = sum(len(spec.get("devices") or []) for spec in slices)
        return Finding("ok" if cards else "fail", f"{name}: mode dra, {cards} cards in its slices")

    def _checked(self, name: str, agent: Object) -> Iterator[Finding]:
        """Yield what `gpushare doctor --k8s` finds in the pod of gpushare-node."""
        answer = self._in_agent(agent, "doctor", "--k8s")
        for check in _loaded(answer) or []:
            if check["level"] != "ok":
                level: Level = "fail" if check["level"] == "fail" else "note"
                fix = f"; {check['fix']}" if check["fix"] else ""
                yield Finding(level, f"{name}: {check['text']}{fix}")

    def _pods(self, node: Object, mode: str, agent: Object) -> Iterator[Finding]:
        name = node["metadata"]["name"]
        image = _image_of(agent)
        pair = [_pod(one, node, mode, image, 1) for one in ("one", "two")]
        large = _pod("large", node, mode, image, _TOO_MUCH_GIB)
        templates = [_template(gib) for gib in (1, _TOO_MUCH_GIB)] if mode == "dra" else []
        self._apply(*templates, *pair, large)
        try:
            running = self._until(lambda: self._phases("one", "two") == ["Running", "Running"])
            if running:
                yield Finding("ok", f"{name}: two pods with 1 GiB each run")
                yield self._counted(name, agent)
            else:
                yield Finding("fail", f"{name}: two pods of 1 GiB do not run: {self._why('one')}")
            why = ""

            def is_refused() -> bool:
                nonlocal why
                why = self._why("large")
                return bool(why)

            self._until(is_refused)
            phase = self._phases("large")
            if why and phase != ["Running"]:
                yield Finding("ok", f"{name}: a pod with {_TOO_MUCH_GIB} GiB does not run: {why}")
            else:
                yield Finding("fail", f"{name}: a pod with {_TOO_MUCH_GIB} GiB is {phase}")
        finally:
            self._delete(mode)
        is_free = self._until(lambda: not self._tenants(agent))
        ending = "released" if is_free else "not released"
        yield Finding("ok" if is_free else "fail", f"{name}: what the pods had is {ending}")

    def _counted(self, name: str, agent: Object) -> Finding:
        """Check that gpushared gave each of the two pods what it requested."""
        quotas = sorted(row["cards"][0]["quota_bytes"] for row in self._tenants(agent))
        if quotas == [_GIB, _GIB]:
            return Finding("ok", f"{name}: gpushared has both, each with a quota of 1 GiB")
        return Finding("fail", f"{name}: gpushared has quotas of {quotas} bytes for two of 1 GiB")

    def _admission(self, node: Object, agents: list[Object]) -> Iterator[Finding]:
        """Check the policies, by pods that are not created."""
        image = next(map(_image_of, agents), "gpushare")
        wrong = _pod("wrong", node, "annotations", image, 1)
        wrong["metadata"]["annotations"]["gpushare.io/memory"] = "4Q"
        answer = self._tried(wrong)
        if answer.status and "gpushare" in answer.errors:
            yield Finding("ok", "a pod with the memory 4Q is refused when it is applied")
        elif self._has("validatingadmissionpolicies", "gpushare-requests"):
            yield Finding("fail", "a pod with the memory 4Q is accepted: the policy has no effect")
        else:
            yield Finding("note", "the cluster has no policy gpushare-requests")
        if not self._has("mutatingadmissionpolicies", "gpushare-translate"):
            yield Finding("note", "the cluster has no policy gpushare-translate")
            return
        theirs = _pod("theirs", node, "annotations", image, 1)
        del theirs["spec"]["runtimeClassName"], theirs["metadata"]["annotations"]
        limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1024"}
        theirs["spec"]["containers"][0]["resources"] = {"limits": limits}
        answer = self._tried(theirs)
        made = _loaded(answer) or {}
        runtime = (made.get("spec") or {}).get("runtimeClassName")
        is_ours = runtime in _CLASSES.values()
        level: Level = "ok" if is_ours else "fail"
        text = f"a pod with HAMi's limits gets the RuntimeClass {runtime or '(none)'}"
        yield Finding(level, text + (f": {answer.errors.strip()}" if answer.errors else ""))

    # --- kubectl ---

    def _asked(self, *words: str, objects: Any = None) -> str:
        """Return what kubectl printed; KubectlError if it failed."""
        answer = self._kubectl(*words, objects=objects)
        if answer.status:
            *_, last = answer.errors.strip().split("\n")  # the lines before are kubectl's log
            raise KubectlError(f"kubectl {words[0]}: {last}")
        return answer.output

    def _list(self, kind: str, *words: str) -> list[Object]:
        items: list[Object] = json.loads(self._asked("get", kind, *words, "--output=json"))["items"]
        return items

    def _has(self, kind: str, name: str) -> bool:
        return not self._kubectl("get", kind, name, "--output=name").status

    def _apply(self, *objects: Object) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self._asked("apply", f"--namespace={self._namespace}", "--filename=-", objects=listed)

    def _tried(self, pod: Object) -> Answer:
        """Return what the API server would make of a pod."""
        words = (f"--namespace={self._namespace}", "--filename=-", "--output=json")
        return self._kubectl("apply", "--dry-run=server", *words, objects=pod)

    def _delete(self, mode: str) -> None:
        kinds = "pods,resourceclaimtemplates" if mode == "dra" else "pods"
        self._kubectl("delete", kinds, "--all", f"--namespace={self._namespace}", "--timeout=2m")

    def _found(self, name: str) -> Object:
        answer = self._kubectl(
            "get", "pod", name, f"--namespace={self._namespace}", "--output=json"
        )
        return _loaded(answer) or {}

    def _phases(self, *names: str) -> list[str]:
        return [str((self._found(name).get("status") or {}).get("phase")) for name in names]

    def _why(self, name: str) -> str:
        """Return why a pod does not run, as the scheduler or the kubelet says; empty: unknown."""
        status = self._found(name).get("status") or {}
        for condition in status.get("conditions") or []:
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                return str(condition.get("message") or condition.get("reason"))
        for one in status.get("containerStatuses") or []:
            for state in (one.get("state") or {}, one.get("lastState") or {}):
                about = state.get("waiting") or state.get("terminated") or {}
                if about.get("message"):
                    return str(about["message"])
        return ""

    def _in_agent(self, agent: Object, *words: str) -> Answer:
        name = agent["metadata"]["name"]
        where = (f"--namespace={self._system}", name, f"--container={_CONTAINER}")
        return self._kubectl("exec", *where, "--", "gpushare", *words, "--json")

    def _tenants(self, agent: Object) -> list[Any]:
        """Return gpushared's rows of the pods of this run."""
        rows = _loaded(self._in_agent(agent, "ps")) or []
        return [row for row in rows if (row["pod"] or {}).get("namespace") == self._namespace]

    def _until(self, holds: Callable[[], bool]) -> bool:
        end = self._clock() + _START_SECONDS
        while not holds():
            if self._clock() >= end:
                return False
            self._pause(_LOOK_SECONDS)
        return True


def _loaded(answer: Answer) -> Any:
    """Return the JSON that kubectl printed; None if it printed none."""
    try:
        return json.loads(answer.output)
    except ValueError:
        return None


def _agent_of(node: str, agents: list[Object]) -> Object | None:
    for agent in agents:
        conditions = (agent.get("status") or {}).get("conditions") or []
        is_ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
        if is_ready and agent["spec"].get("nodeName") == node:
            return agent
    return None


def _image_of(agent: Object) -> str:
    return str(agent["spec"]["containers"][0]["image"])


def _pod(name: str, node: Object, mode: str, image: str, gib: int) -> Object:
    """Return a pod that requests `gib` GiB on a node, in the way of its mode."""
    labels = node["metadata"].get("labels") or {}
    host = labels.get("kubernetes.io/hostname", node["metadata"]["name"])
    container: Object = {"name": "main", "image": image, "args": ["sleep", "infinity"]}
    spec: Object = {
        "runtimeClassName": _CLASSES[mode],
        "nodeSelector": {"kubernetes.io/hostname": host},
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    }
    metadata: Object = {"name": name}
    if mode == "annotations":
        metadata["annotations"] = {"gpushare.io/memory": f"{gib}GiB"}
    elif mode == "plugin":
        container["resources"] = {"limits": {RESOURCE: str(gib)}}
    else:
        claim = {"name": "gpu", "resourceClaimTemplateName": _template_name(gib)}
        spec["resourceClaims"] = [claim]
        container["resources"] = {"claims": [{"name": "gpu"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _template_name(gib: int) -> str:
    return f"memory-{gib}"


def _template(gib: int) -> Object:
    requests = {"capacity": {"requests": {"memory": f"{gib}Gi"}}}
    exactly = {"deviceClassName": _DEVICE_CLASS, **requests}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": _template_name(gib)},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
    }
