# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the kubelet's device manager: device plugins, as 1.36's behaves towards them.

Its messages are compiled from .proto files of its own, so that a plugin's are held against them.
The scheduler compares a request with one sum over all cards of the node, and a ReplicaSet replaces
a pod that was not admitted at once, without a back-off: 1.36.2 was seen to. What is left out: the
topology manager, and what a pod's resources are limited to. Seen with that real one: registration,
restarts, preferred allocations, mounts. Never: two instances of the plugin at a time, or a kubelet
of another version.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .service import PluginClient, PluginError, Service, serve

REGISTRATION = Service("deviceplugin", "Registration")
DEVICE_PLUGIN = Service("deviceplugin", "DevicePlugin")
POD_RESOURCES = Service("podresources", "PodResourcesLister")
CHECKPOINT = "kubelet_internal_checkpoint"


@dataclass
class Endpoint:
    """A plugin that has registered: what it lists, and which of it containers have."""

    resource: str
    client: PluginClient
    takes_preferences: bool
    devices: dict[str, dict[str, Any]] = field(default_factory=dict)
    lists: int = 0
    stopped: bool = False


class StandInKubelet:
    """Serves kubelet.sock in `folder`/device-plugins and /pod-resources, from `start` to `stop`."""

    def __init__(self, folder: Path) -> None:
        self.plugins = folder / "device-plugins"
        self.plugins.mkdir(parents=True, exist_ok=True)
        self.socket = self.plugins / "kubelet.sock"
        self.pod_resources = folder / "pod-resources" / "kubelet.sock"
        self.pod_resources.parent.mkdir(exist_ok=True)
        self.refusal = ""  # what Register is answered with
        self.registrations: list[dict[str, Any]] = []
        self.endpoints: dict[str, Endpoint] = {}
        self.used: dict[str, set[str]] = {}  # by resource: what containers have, across restarts
        self.containers: list[Admitted] = []
        self._threads: list[threading.Thread] = []
        self._admitting = threading.Lock()  # the device manager's own
        self._servers: list[Any] = []

    def __enter__(self) -> StandInKubelet:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Remove all sockets, as a kubelet does when it starts, and serve."""
        for path in self.plugins.iterdir():
            if path.is_socket():
                path.unlink()
        self._servers = [
            serve(self.socket, REGISTRATION, {"Register": self._register}),
            serve(self.pod_resources, POD_RESOURCES, {"List": self._list}),
        ]

    def stop(self) -> None:
        """End, as if killed: what was registered is forgotten, what containers have is not."""
        for server in self._servers:
            server.stop(None).wait()
        for endpoint in self.endpoints.values():
            endpoint.client.close()
        for thread in self._threads:
            thread.join()
        self.endpoints, self._threads, self._servers = {}, [], []
        for socket in (self.socket, self.pod_resources):
            socket.unlink(missing_ok=True)

    def restart(self) -> None:
        self.stop()
        self.start()

    def reboot(self) -> list[Admitted]:
        """Start again on a machine without containers; return the pods that are not admitted.

        1.36.2 was seen to admit its pods before a plugin has registered: a bare one fails for good.
        """
        before, self.containers, self.used = self.containers, [], {}
        self.restart()
        failed = []
        for pod in before:
            try:
                self.admit(pod.resource, len(pod.devices))
            except PluginError:
                failed.append(pod)
        return failed

    def capacity(self, resource: str) -> int:
        """Return the node's capacity, 0 while no plugin serves the resource."""
        return len(self._listed(resource))

    def allocatable(self, resource: str) -> int:
        """Return how much of it is healthy."""
        return len(self.healthy(resource))

    def healthy(self, resource: str) -> set[str]:
        listed = self._listed(resource)
        return {name for name, device in listed.items() if device["health"] == "Healthy"}

    def available(self, resource: str) -> int:
        """Return what the scheduler takes a pod to fit into: of all cards together."""
        return self.allocatable(resource) - len(self.used.get(resource, ()))

    def replace_failed(self, resource: str, count: int, most: int) -> int:
        """Admit up to `most` pods of a ReplicaSet, one after the other; return how many fail.

        The scheduler keeps a pod Pending that does not fit.
        """
        for failed in range(most):
            if self.available(resource) < count:
                return failed
            with suppress(PluginError):
                self.admit(resource, count)
                return failed
        return most

    def admit(self, resource: str, count: int) -> Admitted:
        """Allocate for a container; PluginError fails the pod, as UnexpectedAdmissionError does."""
        with self._admitting:
            return self._admit(resource, count)

    def _admit(self, resource: str, count: int) -> Admitted:
        used = self.used.setdefault(resource, set())
        free = self.healthy(resource) - used
        if len(free) < count:
            raise PluginError(f"Insufficient {resource}")
        endpoint = self.endpoints[resource]
        chosen: list[str] = []
        if endpoint.takes_preferences:
            wanted = {"available_deviceIDs": sorted(free), "allocation_size": count}
            reply = endpoint.client.call(
                DEVICE_PLUGIN, "GetPreferredAllocation", container_requests=[wanted]
            )
            [each] = reply["container_responses"]
            chosen += [device for device in each["deviceIDs"] if device in free]
        # What the plugin did not choose, the kubelet does.
        chosen += sorted(free - set(chosen))
        chosen = chosen[:count]
        reply = endpoint.client.call(
            DEVICE_PLUGIN, "Allocate", container_requests=[{"devices_ids": chosen}]
        )
        used |= set(chosen)
        admitted = Admitted(self, resource, set(chosen), reply["container_responses"][0])
        self.containers.append(admitted)
        return admitted

    def _list(self, _request: dict[str, Any]) -> dict[str, Any]:
        return {
            "pod_resources": [
                {
                    "containers": [
                        {
                            "devices": [
                                {"resource_name": one.resource, "device_ids": sorted(one.devices)}
                            ]
                        }
                    ]
                }
                for one in self.containers
            ]
        }

    def write_checkpoint(self, devices: dict[str, list[str]]) -> None:
        """Write what an earlier kubelet noted of the plugins of this node."""
        data = {"PodDeviceEntries": None, "RegisteredDevices": devices}
        text = json.dumps({"Data": data, "Checksum": 1})
        (self.plugins / CHECKPOINT).write_text(text)

    def _listed(self, resource: str) -> dict[str, dict[str, Any]]:
        endpoint = self.endpoints.get(resource)
        return {} if endpoint is None or endpoint.stopped else endpoint.devices

    def _register(self, request: dict[str, Any]) -> None:
        self.registrations.append(request)
        if self.refusal:
            raise PluginError(self.refusal)
        if request["version"] != "v1beta1":
            raise PluginError(f"unsupported version {request['version']}")
        client = PluginClient(self.plugins / request["endpoint"])
        options = client.call(DEVICE_PLUGIN, "GetDevicePluginOptions")
        name = request["resource_name"]
        endpoint = Endpoint(name, client, options["get_preferred_allocation_available"])
        before = self.endpoints.get(name)
        self.endpoints[name] = endpoint
        if before is not None:
            before.client.close()
        thread = threading.Thread(target=self._watch, args=[endpoint])
        self._threads.append(thread)
        thread.start()

    def _watch(self, endpoint: Endpoint) -> None:
        with suppress(ValueError):  # the channel is closed before the stream is opened
            for reply in endpoint.client.stream(DEVICE_PLUGIN, "ListAndWatch"):
                endpoint.devices = {device["ID"]: device for device in reply["devices"]}
                endpoint.lists += 1
        endpoint.stopped = True


@dataclass(frozen=True)
class Admitted:
    """What a container was given."""

    kubelet: StandInKubelet
    resource: str
    devices: set[str]
    response: dict[str, Any]

    def mounts(self) -> list[dict[str, Any]]:
        """Return its mounts as CRI has them."""
        return [
            {
                "container_path": mount["container_path"],
                "host_path": mount["host_path"],
                "readonly": mount["read_only"],
            }
            for mount in self.response["mounts"]
        ]

    def release(self) -> None:
        """The pod has ended: its devices are free again."""
        self.kubelet.used[self.resource] -= self.devices
        self.kubelet.containers.remove(self)
