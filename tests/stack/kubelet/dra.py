# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the kubelet's plugin manager and its DRA manager, as 1.34 to 1.37 behave.

Seen with a real one (1.36.2): registration, prepare and unprepare, health, restarts, two instances.
Never: a kubelet of another version.

A kubelet watches plugins_registry. Here `look` is one look at it, so that a test knows when.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .service import PluginClient, PluginError, Service

REGISTRATION = Service("pluginregistration", "Registration")
#: By the names that a driver reports; the newest first, as a kubelet prefers them.
DRA = {
    f"{version}.DRAPlugin": Service("dra", "DRAPlugin", f"k8s.io.kubelet.pkg.apis.dra.{version}")
    for version in ("v1", "v1beta1")
}
HEALTH = {
    f"{version}.DRAResourceHealth": Service("dra_health", "DRAResourceHealth", version)
    for version in ("v1", "v1alpha1")
}


@dataclass
class Driver:
    """An instance of a driver that has registered, and the health that it streams."""

    name: str
    client: PluginClient
    versions: list[str]
    health: dict[str, dict[str, Any]] = field(default_factory=dict)
    reports: int = 0
    thread: threading.Thread | None = None

    def watch(self, service: Service) -> None:
        with suppress(ValueError):  # the channel is closed before the stream is opened
            for reply in self.client.stream(service, "NodeWatchResources"):
                devices = {each["device"]["device_name"]: each for each in reply["devices"]}
                self.health, self.reports = devices, self.reports + 1


class DraKubelet:
    """A kubelet with the services in `knows`, by their names."""

    def __init__(self, folder: Path, knows: Sequence[str] = (*DRA, *HEALTH)) -> None:
        self.registry = folder / "plugins_registry"
        self.registry.mkdir(parents=True, exist_ok=True)
        self.refusal = ""  # what a plugin is told of its registration
        self.drivers: dict[str, Driver] = {}  # by the socket of the registration, oldest first
        self._knows = knows

    def __enter__(self) -> DraKubelet:
        return self

    def __exit__(self, *_: object) -> None:
        self.forget()

    def look(self) -> None:
        """Register new sockets, and forget those that are gone."""
        sockets = {path.name: path for path in self.registry.iterdir() if path.is_socket()}
        for name in self.drivers.keys() - sockets.keys():
            self._close(self.drivers.pop(name))
        for name in sockets.keys() - self.drivers.keys():
            self._register(name, sockets[name])

    def forget(self) -> None:
        """End, as a restart does: what was registered is found again by the next look."""
        for driver in self.drivers.values():
            self._close(driver)
        self.drivers = {}

    @property
    def driver(self) -> Driver:
        """The newest instance, which a kubelet calls."""
        if not self.drivers:
            raise PluginError("no DRA driver is registered")
        return list(self.drivers.values())[-1]

    def prepare(self, *claims: dict[str, str]) -> dict[str, Any]:
        """Return what each claim got, by its UID: devices, or an error."""
        return self._call("NodePrepareResources", claims)

    def unprepare(self, *claims: dict[str, str]) -> dict[str, Any]:
        return self._call("NodeUnprepareResources", claims)

    def _call(self, method: str, claims: Sequence[dict[str, str]]) -> dict[str, Any]:
        service = next(DRA[name] for name in self._known(DRA, self.driver))
        reply = self.driver.client.call(service, method, claims=list(claims))
        found: dict[str, Any] = reply["claims"]
        missing = {claim["uid"] for claim in claims} - found.keys()
        if missing:
            raise PluginError(f"{method}: no answer for {missing}")
        return found

    def _known(self, services: dict[str, Service], driver: Driver) -> list[str]:
        return [name for name in services if name in self._knows and name in driver.versions]

    def _register(self, name: str, socket: Path) -> None:
        client = PluginClient(socket)
        try:
            info = client.call(REGISTRATION, "GetInfo")
            refusal = self.refusal
            if info["type"] != "DRAPlugin":
                refusal = f"no handler for {info['type']}"
            driver = Driver(
                info["name"], PluginClient(Path(info["endpoint"])), info["supported_versions"]
            )
            if not self._known(DRA, driver):
                refusal = f"none of {driver.versions} is supported"
            client.call(
                REGISTRATION,
                "NotifyRegistrationStatus",
                plugin_registered=not refusal,
                error=refusal,
            )
        finally:
            client.close()
        if refusal:
            driver.client.close()
            return
        self.drivers[name] = driver
        for version in self._known(HEALTH, driver)[:1]:
            driver.thread = threading.Thread(target=driver.watch, args=[HEALTH[version]])
            driver.thread.start()

    @staticmethod
    def _close(driver: Driver) -> None:
        driver.client.close()
        if driver.thread is not None:
            driver.thread.join()
