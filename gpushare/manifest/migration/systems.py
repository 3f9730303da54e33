# SPDX-License-Identifier: Apache-2.0
"""The systems from which a cluster can migrate: by what they are recognized, and how they leave.

Tables, without logic. Source: Project-HAMi/HAMi v2.10 (charts/hami, pkg/scheduler/webhook.go);
tkestack/gpu-manager 1.1 (gpu-manager.yaml, README) and tkestack/gpu-admission; Tencent Cloud
457/59103 (the objects of qGPU); alibabacloud.com "Manage the shared GPU scheduling component" and
"Labels used by ACK to control GPUs", AliyunContainerService/gpushare-scheduler-extender and
gpushare-device-plugin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

ComponentRole: TypeAlias = Literal["webhook", "scheduler", "device plugin", "settings"]
#: In the order of removal: what rewrites pods, what places them, what serves them, and the rest.
ROLES: Final[tuple[ComponentRole, ...]] = get_args(ComponentRole)


@dataclass(frozen=True)
class Component:
    """A part of a system: objects of `kind` with such a name, image, or name of a webhook."""

    role: ComponentRole
    kind: str
    name: re.Pattern[str] | None = None
    image: re.Pattern[str] | None = None
    webhook: str = ""


@dataclass(frozen=True)
class SharingSystem:
    """A system that shares cards in Kubernetes.

    `dialects` are the tables of its keys, `shared_limits` limits of other tables that it serves.
    `scheduler` is the name of its scheduler, `ignore_webhook` the label of a namespace that its
    webhook leaves alone. `free_node` says what it leaves on a node; `free_node_by_label`: without
    its label, its device plugin leaves the node for good; otherwise `new_node_commands` prepare a
    new one. `managed` is how its vendor installs it, where no object says so. `removal` is what to
    know of a component when it is removed, `notes` are differences that users notice.
    """

    name: str
    title: str
    dialects: tuple[str, ...]
    components: tuple[Component, ...]
    shared_limits: tuple[str, ...] = ()
    scheduler: str = ""
    free_node_by_label: bool = True
    free_node: tuple[str, ...] = ()
    new_node_commands: tuple[str, ...] = ()
    managed: str = ""
    notes: tuple[str, ...] = ()
    removal: Mapping[ComponentRole, str] = field(default_factory=dict)
    ignore_webhook: str = ""


def _named(expression: str) -> re.Pattern[str]:
    return re.compile(expression)


HAMI: Final = SharingSystem(
    "hami",
    "HAMi",
    dialects=("hami",),
    shared_limits=("nvidia.com/gpu",),
    components=(
        Component("webhook", "MutatingWebhookConfiguration", webhook="vgpu.hami.io"),
        Component("webhook", "ValidatingWebhookConfiguration", webhook="vgpu.hami.io"),
        Component(
            "scheduler",
            "Deployment",
            _named(r"(^|-)hami-scheduler$"),
            _named(r"(^|/)projecthami/hami(:|@|$)"),
        ),
        Component(
            "device plugin",
            "DaemonSet",
            _named(r"(^|-)hami-device-plugin$"),
            _named(r"(^|/)projecthami/hami(:|@|$)"),
        ),
        Component(
            "settings",
            "ConfigMap",
            _named(r"(^|-)hami-(scheduler(-newversion|-device)?|device-plugin)$"),
        ),
    ),
    scheduler="hami-scheduler",
    ignore_webhook="hami.io/webhook=ignore",
    free_node=("Delete /usr/local/vgpu on the node once no container mounts it.",),
    removal={
        "webhook": "A pod with nvidia.com/gpumem that is not translated stays Pending from now on."
    },
    notes=(
        (
            "HAMi's library is loaded by /etc/ld.so.preload of a container. Containers that run "
            "keep it until they are created again."
        ),
        (
            "A pod with nvidia.com/gpu alone has all memory of a card, and HAMi still places other "
            "pods beside it by their cores. In gpushare it has the whole card, unless "
            "defaults.mode is shared."
        ),
    ),
)

GPU_MANAGER: Final = SharingSystem(
    "gpu-manager",
    "gpu-manager",
    dialects=("vcuda",),
    components=(
        Component(
            "scheduler",
            "Deployment",
            _named(r"^gpu-(quota-)?admission$"),
            _named(r"(^|/)gpu-(quota-)?admission(:|@|$)"),
        ),
        Component(
            "scheduler",
            "Pod",
            _named(r"^gpu-(quota-)?admission($|-(?!.*-))"),
            _named(r"(^|/)gpu-(quota-)?admission(:|@|$)"),
        ),
        Component(
            "device plugin",
            "DaemonSet",
            _named(r"^gpu-manager(-daemonset)?$"),
            _named(r"(^|/)gpu-manager(:|@|$)"),
        ),
    ),
    free_node=("Delete /etc/gpu-manager on the node once no container mounts it.",),
    removal={
        "scheduler": "Before that, remove the extender with urlPrefix "
        "http://ADDRESS:3456/scheduler from the configuration of kube-scheduler, and restart it: "
        "a scheduler that does not reach its extender places no pod with these resources.",
    },
    notes=(
        (
            "gpu-manager mounts its own libcuda into containers. Containers that run keep it until "
            "they are created again."
        ),
    ),
)

QGPU: Final = SharingSystem(
    "qgpu",
    "qGPU",
    dialects=("qgpu",),
    components=(
        Component("scheduler", "Deployment", _named(r"^qgpu-scheduler$")),
        Component("device plugin", "DaemonSet", _named(r"^qgpu-manager$")),
    ),
    free_node_by_label=False,
    free_node=(
        (
            "qGPU has a kernel module on the node. Use new nodes, of a node pool for which GPU "
            "sharing is off, instead of freeing nodes that have run it."
        ),
    ),
    managed="in TKE's console: the add-on qgpu of the cluster",
    notes=(
        "A qGPU node without a policy label is best-effort; gpushare's default is fixed-share.",
        "The driver may be newer than qGPU allowed.",
    ),
)

CGPU: Final = SharingSystem(
    "cgpu",
    "ACK shared GPUs (cGPU)",
    dialects=("alibaba",),
    components=(
        Component(
            "scheduler",
            "Deployment",
            _named(r"^gpushare-schd-extender$"),
            _named(r"(^|/)k8s-gpushare-schd-extender(:|@|$)"),
        ),
        Component(
            "device plugin",
            "DaemonSet",
            _named(r"^gpushare-([a-z]+-)?device-plugin-ds$|^gputopo-device-plugin-ds$"),
            _named(r"(^|/)k8s-gpushare-plugin(:|@|$)"),
        ),
        Component("device plugin", "DaemonSet", _named(r"^cgpu-(core-)?installer$")),
    ),
    free_node_by_label=False,
    free_node=(
        (
            "cGPU has a kernel module on the node, and ACK advises against kubectl label to change "
            "ack.node.gpu.schedule: pods of both policies would use one card. Use new nodes, of a "
            "node pool with ack.node.gpu.schedule=default, instead of freeing nodes that have run "
            "it."
        ),
        (
            "For a node with that label, gpushare accepts requests for whole cards only. "
            "gpushare.io/wanted-mode takes precedence."
        ),
    ),
    new_node_commands=("kubectl label node NODE gpushare.io/wanted-mode=any",),
    managed="in ACK's console, or by helm: the component ack-ai-installer",
    removal={
        "scheduler": "Before that, remove the extender gpushare-schd-extender from the "
        "configuration of kube-scheduler, and restart it.",
    },
    notes=(
        (
            "The names of ACK's DaemonSets begin with gpushare-, too. Those of this project are "
            "gpushare-node and gpushare-exporter."
        ),
        "cudaMallocManaged, which cGPU refuses, works and is charged to the quota.",
    ),
)

SYSTEMS: Final = {one.name: one for one in (HAMI, GPU_MANAGER, QGPU, CGPU)}
