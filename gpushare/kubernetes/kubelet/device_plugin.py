# SPDX-License-Identifier: Apache-2.0
"""The device plugin (v1beta1): a node's memory on its cards as an extended resource.

Kubernetes counts units of memory, and Allocate turns the ids that a container got into mounts of
folders that gpushared made for exactly that part. At create, gpushared recognizes those folders by
their source; a pod cannot mount one itself without a hostPath volume. AllocateRequest names no pod,
so nothing is reserved here: gpushared reserves at create. Until then, and when it has ended, the
kubelet's PodResources API alone knows that a container has its ids.

The kubelet forgets its plugins when it starts, and removes their sockets. `step` notices that by
the inode of its socket, and registers again.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gpushare.client import Client
from gpushare.errors import UserError
from gpushare.kubernetes.kubelet import memory_units
from gpushare.kubernetes.kubelet.grpc_service import (
    DEVICE_PLUGIN,
    DEVICE_PLUGIN_VERSION,
    DEVICE_REGISTRATION,
    KUBELET_SOCKET,
    POD_RESOURCES,
    Broadcast,
    Call,
    GrpcServer,
    call,
    inode,
)
from gpushare.kubernetes.kubelet.memory_units import NoDevices, Refusals
from gpushare.protocol.kubernetes import ALLOCATION_MOUNT

if TYPE_CHECKING:
    from gpushare.kubernetes import StatusLog
    from gpushare.kubernetes.cards import SchedulableCard
    from gpushare.kubernetes.kubelet.grpc_service import Values
    from gpushare.kubernetes.kubelet.memory_units import MemoryResource

RETRY_SECONDS: Final = 5.0
#: After a registration, the kubelet opens a stream at once. Without one it uses no device.
STREAM_SECONDS: Final = 10.0
#: A container that the kubelet does not list so long after its Allocate was not admitted.
PENDING_SECONDS: Final = 15.0
_CHECKPOINT: Final = "kubelet_internal_checkpoint"
#: Of the kubelet, beside its folder of device plugins.
_POD_RESOURCES: Final = Path("pod-resources") / KUBELET_SOCKET
_OPTIONS: Final = {"get_preferred_allocation_available": True}
Decided = TypeVar("Decided")


class DevicePlugin:
    """Serves and registers `resource` in the kubelet's folder of device plugins."""

    def __init__(
        self,
        folder: Path,
        resource: MemoryResource,
        client: Client,
        log: StatusLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._resource, self._client = folder, resource, client
        self._log, self._clock = log, clock
        self._socket = folder / f"gpushare-{resource.name.rpartition('/')[2]}.sock"
        self._server: GrpcServer | None = None
        self._registered: tuple[int, int] | None = None  # the kubelet's socket at the time
        self._retry_at = 0.0
        self._registered_at = 0.0
        self._devices = Broadcast(clock)
        self._lock = threading.Lock()  # guards what follows, from the threads of calls
        self._answer: tuple[SchedulableCard, ...] | None = None  # gpushared's, the last one
        self._cards: tuple[SchedulableCard, ...] = ()
        self._offered: object = None  # what the last list was made of
        # The ids of each container: by the kubelet's list, None without one, and by calls since.
        self._containers: list[frozenset[str]] | None = None
        self._pending: dict[frozenset[str], float] = {}
        self._refusals = Refusals()
        self._offers_less = False

    @property
    def is_registered(self) -> bool:
        """Whether the kubelet has accepted it."""
        return self._registered is not None

    def update(self, cards: tuple[SchedulableCard, ...]) -> None:
        """Report the cards to the kubelet; UserError if a list of them would be too long."""
        asks = has_changed = False
        if cards is not self._answer:  # gpushared has been asked again
            with self._lock:
                has_changed = cards != self._answer
                self._answer = cards
                self._cards = tuple(card for card in cards if card.allows_shares)
                asks = self._needs_containers
        if asks:
            self._list_containers()
        with self._lock:
            if asks or has_changed or self._is_narrow != self._offers_less:
                self._offer()

    @property
    def _needs_containers(self) -> bool:
        """Whether it matters what is in use: otherwise, the kubelet's own count is enough."""
        return (
            self._containers is None
            or bool(self._pending)
            or self._is_narrow
            or any(card.is_closed for card in self._counted())
        )

    def _list_containers(self) -> None:
        """Have the containers be those that the kubelet lists; the last ones while it restarts."""
        path, name = self._folder.parent / _POD_RESOURCES, self._resource.name
        try:
            reply = call(path, POD_RESOURCES, "List", {})
        except UserError as error:
            self._log.note("containers", f"the containers that have devices are not known: {error}")
            listed = self._containers
        else:
            self._log.note("containers", "the kubelet lists the devices of its containers")
            listed = [
                frozenset(
                    id_
                    for part in one.devices
                    if part.resource_name == name
                    for id_ in part.device_ids
                    if memory_units.is_own(id_)
                )
                for pod in reply.pod_resources
                for one in pod.containers
            ]
        with self._lock:
            self._containers = listed
            known = {id_ for ids in listed or () for id_ in ids}
            oldest = self._clock() - PENDING_SECONDS
            self._pending = {
                ids: since
                for ids, since in self._pending.items()
                if since > oldest and not ids <= known
            }

    def _counted(self) -> tuple[SchedulableCard, ...]:
        """Return the cards with the containers that gpushared does not know yet."""
        known = memory_units.tenants_by_card((*(self._containers or ()), *self._pending))
        return tuple(
            replace(card, tenants=max(card.tenants, known[card.uuid])) for card in self._cards
        )

    @property
    def _is_narrow(self) -> bool:
        """Whether only the largest free part of one card is offered now."""
        return self._clock() < self._refusals.until and self._containers is not None

    def _offer(self) -> None:
        """Send the list of devices, if it has changed."""
        cards, used = self._counted(), list[str]()
        if self._containers is None:  # what is in use is not known: free ids cannot be told from it
            cards = tuple(replace(card, tenants=0, cores_left=100) for card in cards)
        else:
            used = [id_ for ids in (*self._containers, *self._pending) for id_ in ids]
        self._offers_less = self._is_narrow
        healthy = memory_units.healthy_units(
            cards, self._resource, used, only_largest=self._offers_less
        )
        offered = healthy, [(card.uuid, card.memory_bytes, card.numa_node) for card in cards]
        if offered != self._offered:
            listed = memory_units.devices(cards, self._resource, healthy)
            self._devices.send({"devices": listed})
            self._offered = offered

    def step(self) -> None:
        """Register with a kubelet that does not know this plugin; UserError if it must not."""
        kubelet = inode(self._folder / KUBELET_SOCKET)
        if kubelet is None:
            self._log.note("kubelet", f"waiting for a kubelet: no {self._folder / KUBELET_SOCKET}")
            self._registered = None
            return
        now = self._clock()
        is_due = self._devices.has_message and now >= self._retry_at
        if not is_due or self._is_known_to(kubelet):
            return
        self._retry_at = now + RETRY_SECONDS
        self._refuse_taken()
        try:
            self._register()
        except UserError as error:
            self._registered = None
            self._log.note("kubelet", str(error))
            return
        self._registered, self._registered_at, self._retry_at = kubelet, now, 0.0
        unit = self._resource.amount(1)
        self._log.note("kubelet", f"registered {self._resource.name}, in units of {unit}")

    def close(self) -> None:
        """Close the streams and remove the socket."""
        self._devices.close()
        if self._server is not None:
            self._server.close()

    def _is_known_to(self, kubelet: tuple[int, int]) -> bool:
        is_served = self._server is not None and self._server.is_reachable
        is_read = self._devices.quiet_seconds(self._registered_at) < STREAM_SECONDS
        return is_served and is_read and self._registered == kubelet

    def _register(self) -> None:
        # The kubelet calls the plugin before it answers the registration: serve first.
        if self._server is None or not self._server.is_reachable:
            if self._server is not None:
                self._server.close()
            self._server = GrpcServer(self._socket, [(DEVICE_PLUGIN, self._methods())])
        request = {
            "version": DEVICE_PLUGIN_VERSION,
            "endpoint": self._socket.name,
            "resource_name": self._resource.name,
            "options": _OPTIONS,
        }
        call(self._folder / KUBELET_SOCKET, DEVICE_REGISTRATION, "Register", request)

    def _refuse_taken(self) -> None:
        """Raise UserError if another plugin registered the name: the two would displace each other.

        The kubelet forgets a plugin five minutes after its end.
        """
        path = self._folder / _CHECKPOINT
        try:
            checkpoint: Any = json.loads(path.read_text(encoding="utf-8"))
            known = checkpoint["Data"]["RegisteredDevices"].get(self._resource.name) or ()
            others = [str(device) for device in known if not memory_units.is_own(str(device))]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return  # it cannot be known
        if others:
            raise UserError(
                f"another device plugin of this node has registered {self._resource.name} "
                f"(device {others[0]} in {path}). Remove that plugin and wait five minutes, or use "
                "another --resource"
            )

    def _methods(self) -> dict[str, Callable[[Any, Call], Any]]:
        return {
            "GetDevicePluginOptions": lambda _request, _call: _OPTIONS,
            "ListAndWatch": lambda _request, call: self._devices.stream(call),
            "GetPreferredAllocation": self._preferred_allocation,
            "Allocate": self._allocate,
            "PreStartContainer": lambda _request, _call: {},
        }

    def _preferred_allocation(self, request: Any, _call: Call) -> Values:
        placement = self._placement()
        with self._lock:
            cards = self._counted()
            return self._unless_refused(
                lambda: {
                    "container_responses": [
                        {
                            "deviceIDs": memory_units.preferred(
                                each.available_deviceIDs,
                                each.must_include_deviceIDs,
                                each.allocation_size,
                                cards,
                                self._resource,
                                placement,
                            )
                        }
                        for each in request.container_requests
                    ]
                }
            )

    def _placement(self) -> str:
        try:
            return self._client.status().get("default_placement", "")
        except UserError:
            return ""  # it restarts

    def _allocate(self, request: Any, _call: Call) -> Values:
        wanted = [each.devices_ids for each in request.container_requests]
        with self._lock:
            parts = self._unless_refused(
                lambda: [memory_units.parts(ids, self._resource) for ids in wanted]
            )
        reply = {"container_responses": [{"mounts": list(self._mounts(each))} for each in parts]}
        with self._lock:
            self._pending.update((frozenset(ids), self._clock()) for ids in wanted)
            self._offer()
        return reply

    def _unless_refused(self, decide: Callable[[], Decided]) -> Decided:
        """Return the decision; where no card has room, the kubelet is offered less from now on."""
        try:
            return decide()
        except NoDevices:
            self._refusals = self._refusals.with_another(self._clock())
            self._offer()
            raise

    def _mounts(self, parts: Iterable[tuple[str, int]]) -> Iterator[Values]:
        for number, (card, size) in enumerate(parts):
            yield {
                "container_path": ALLOCATION_MOUNT + (f"-{number}" if number else ""),
                "host_path": self._client.allocation(card, size),
                "read_only": True,
            }
