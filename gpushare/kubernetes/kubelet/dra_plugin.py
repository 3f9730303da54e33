# SPDX-License-Identifier: Apache-2.0
"""The driver of dynamic resource allocation (DRA) on this node: the kubelet prepares claims here.

The scheduler has written into the claim which cards it gets, and how much of each. Prepare reads
that, and gpushared reserves it before the kubelet has its answer. No state is kept here: either
instance of a rolling update answers every call, and a call that is repeated gets the same answer.

The kubelet finds the plugin by its socket in plugins_registry, also after a restart of its own.
While two instances overlap, each has sockets that are named by its pod's UID, and the kubelet (1.33
and newer) uses the newest. The names are those of kubernetes' kubeletplugin (draplugin.go).
"""

from __future__ import annotations

import base64
import hashlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from gpushare.client import Client, DaemonUnreachable
from gpushare.errors import UserError
from gpushare.kubernetes.cards import reason_word
from gpushare.kubernetes.kubelet.grpc_service import (
    DRA_HEALTHY,
    DRA_SERVICES,
    DRA_UNHEALTHY,
    DRA_UNKNOWN,
    HEALTH_SERVICES,
    MAX_MESSAGE_CHARACTERS,
    PLUGIN_REGISTRATION,
    PLUGIN_TYPE,
    Broadcast,
    Call,
    GrpcServer,
)
from gpushare.protocol.kubernetes import DRIVER, ClaimDevice, device_name

if TYPE_CHECKING:
    from gpushare.kubernetes import StatusLog
    from gpushare.kubernetes.api.claims import AllocatedClaim, AllocatedDevice
    from gpushare.kubernetes.cards import SchedulableCard
    from gpushare.kubernetes.kubelet.grpc_service import Values

PATH_BYTES: Final = 107  # of a Unix socket (sun_path, with a zero at the end)
#: A device whose health is older is unknown to the kubelet; it is sent three times as often.
HEALTH_TIMEOUT_SECONDS: Final = 60
_HEALTH_SECONDS: Final = HEALTH_TIMEOUT_SECONDS / 3
WHOLE_CARD_CORES: Final = 100
#: How long a call waits for gpushared. The kubelet waits 45 s, and repeats a call that failed late.
AWAY_SECONDS: Final = 10.0
AGAIN_SECONDS: Final = 0.2
#: How often gpushared is asked for claims that are left of mode dra.
LEFT_SECONDS: Final = 10.0

T = TypeVar("T")


class ClaimSource(Protocol):
    """Reads claims of the cluster, as gpushare.kubernetes.api.claims.ClaimReader does."""

    def read(self, namespace: str, name: str) -> AllocatedClaim:
        """Return a claim; UserError."""


class PreparedClaimFollower(Protocol):
    """Is told which claims are prepared, and which devices are well."""

    def follow(self, claim: AllocatedClaim) -> None:
        """Take a claim that is prepared."""

    def refuse(self, claim: AllocatedClaim, why: str) -> None:
        """Take a claim that gpushared refused."""

    def forget(self, uid: str) -> None:
        """Take a claim that is no longer prepared."""

    def update_health(self, faults: Mapping[str, str]) -> None:
        """Take the faults of devices, by name; devices without one are well."""


class DraPlugin:
    """Serves the driver below the kubelet's root directory, for the pool of this node.

    `registered` is called whenever a kubelet has accepted it: ResourceSlices come after that.
    `pod_uid` is the instance's, if it may overlap with another one in a rolling update.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - it stands between the three
        self,
        kubelet: Path,
        pool: str,
        claims: ClaimSource,
        client: Client,
        prepared: PreparedClaimFollower,
        log: StatusLog,
        registered: Callable[[], None] = lambda: None,
        pod_uid: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_registered = False
        self._pool, self._claims, self._client = pool, claims, client
        self._prepared, self._registered = prepared, registered
        self._log, self._clock = log, clock
        self._sockets = plugin_sockets(kubelet, pod_uid)
        self._servers: list[GrpcServer] = []
        self._cards: tuple[SchedulableCard, ...] = ()
        self._health = Broadcast(clock)
        self._health_at = 0.0
        self._closed = threading.Event()

    def update(self, cards: tuple[SchedulableCard, ...]) -> None:
        """Take the cards as gpushared reports them."""
        now = self._clock()
        if cards == self._cards and now - self._health_at < _HEALTH_SECONDS:
            return
        self._cards, self._health_at = cards, now
        self._health.send({"devices": [self._health_of(card) for card in cards]})
        faults = {device_name(card.uuid): card.reason for card in cards if card.reason}
        self._prepared.update_health(faults)

    def step(self) -> None:
        """Serve; a kubelet that starts finds the sockets, and some remove them."""
        if self._servers and all(server.is_reachable for server in self._servers):
            return
        if not self._health.has_message:
            return  # a claim's devices are not known yet
        self._close_servers()
        try:
            for path in (self._sockets.service, self._sockets.registration):
                path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            remove_abandoned(self._sockets)
            # The kubelet calls the service once it sees the socket of the registration.
            self._servers.append(GrpcServer(self._sockets.service, self._services()))
            registration = {"GetInfo": self._info, "NotifyRegistrationStatus": self._status}
            self._servers.append(
                GrpcServer(self._sockets.registration, [(PLUGIN_REGISTRATION, registration)])
            )
        except (OSError, UserError) as error:
            self._close_servers()
            self._log.note("kubelet", str(error))

    def close(self) -> None:
        """Remove the sockets; the kubelet does not, and would call them."""
        self._closed.set()
        self._health.close()
        self._close_servers()

    def _close_servers(self) -> None:
        for server in reversed(self._servers):
            server.close()
        self._servers = []

    def _services(self) -> list[Any]:
        dra = {
            "NodePrepareResources": self._prepare_claims,
            "NodeUnprepareResources": self._unprepare_claims,
        }
        health = {"NodeWatchResources": lambda _request, call: self._health.stream(call)}
        return [
            *((service, dra) for service in DRA_SERVICES.values()),
            *((service, health) for service in HEALTH_SERVICES.values()),
        ]

    def _info(self, _request: Any, _call: Call) -> Values:
        return {
            "type": PLUGIN_TYPE,
            "name": DRIVER,
            "endpoint": str(self._sockets.service),
            "supported_versions": [*DRA_SERVICES, *HEALTH_SERVICES],
        }

    def _status(self, request: Any, _call: Call) -> Values:
        if request.plugin_registered:
            self.is_registered = True
            self._log.note("kubelet", f"the kubelet has registered {DRIVER}")
            self._registered()
        else:
            self._log.note("kubelet", f"the kubelet refused {DRIVER}: {request.error}")
        return {}

    def _asked(self, ask: Callable[[], T]) -> T:
        """Return what gpushared answers: an upgrade, for example, restarts it meanwhile."""
        until = self._clock() + AWAY_SECONDS
        while True:
            try:
                return ask()
            except DaemonUnreachable:
                if self._clock() >= until or self._closed.wait(AGAIN_SECONDS):
                    raise

    def _prepare_claims(self, request: Any, _call: Call) -> Values:
        return {"claims": {claim.uid: self._prepare(claim) for claim in request.claims}}

    def _prepare(self, wanted: Any) -> Values:
        where = f"{wanted.namespace}/{wanted.name}"
        claim = None
        try:
            claim = self._read(wanted)
            prepare = partial(
                self._client.prepare_claim,
                claim.uid,
                namespace=claim.namespace,
                name=claim.name,
                pods=claim.pods,
                devices=[self._granted(device) for device in claim.devices],
                parameters=_parameters(claim),
            )
            reply = self._asked(prepare)
        except UserError as error:
            self._log.note(f"claim {wanted.uid}", f"claim {where}: {error}")
            if claim is not None:
                self._prepared.refuse(claim, str(error))
            return {"error": str(error)}
        self._prepared.follow(claim)
        return {
            "devices": [
                {
                    "request_names": [device.request],
                    "pool_name": device.pool,
                    "device_name": device.device,
                    "cdi_device_ids": [reply["cdi"][device.request]],
                }
                for device in claim.devices
            ]
        }

    def _read(self, wanted: Any) -> AllocatedClaim:
        claim = self._claims.read(wanted.namespace, wanted.name)
        if claim.uid != wanted.uid:
            raise UserError("it was deleted, and another claim has its name")
        if not claim.devices:
            raise UserError(f"it has no device of {DRIVER}")
        return claim

    def _granted(self, device: AllocatedDevice) -> ClaimDevice:
        """Return what the claim gets of a card; UserError if this node does not have the card."""
        card = next((card for card in self._cards if device_name(card.uuid) == device.device), None)
        if card is None or device.pool != self._pool:
            raise UserError(f"this node has no device {device.device} in the pool {device.pool}")
        memory, cores = device.memory_bytes, device.cores
        return {
            "request": device.request,
            "card": card.uuid,
            "memory_bytes": card.memory_bytes if memory is None else memory,
            "cores": WHOLE_CARD_CORES if cores is None else cores,
            "share": device.share,
        }

    def _unprepare_claims(self, request: Any, _call: Call) -> Values:
        return {"claims": {claim.uid: self._unprepare(claim) for claim in request.claims}}

    def _unprepare(self, claim: Any) -> Values:
        try:
            self._asked(lambda: self._client.unprepare_claim(claim.uid))
        except UserError as error:
            return {"error": str(error)}
        self._prepared.forget(claim.uid)
        return {}

    def _health_of(self, card: SchedulableCard) -> Values:
        return {
            "device": {"pool_name": self._pool, "device_name": device_name(card.uuid)},
            "health": _health(card),
            "last_updated_time": int(time.time()),
            "health_check_timeout_seconds": HEALTH_TIMEOUT_SECONDS,
            "message": card.reason[:MAX_MESSAGE_CHARACTERS],
        }


class ClaimsOfEarlierMode:
    """Serves the release of claims that are left of mode dra, until there are none.

    Without a driver, a kubelet leaves the pods of such claims Terminating, and says nothing.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - as DraPlugin's
        self,
        kubelet: Path,
        pool: str,
        client: Client,
        log: StatusLog,
        pod_uid: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._log, self._clock = client, log, clock
        self._plugin: DraPlugin | None = DraPlugin(
            kubelet, pool, self, client, self, log, pod_uid=pod_uid, clock=clock
        )
        self._asked = clock()

    @property
    def is_registered(self) -> bool:
        """Whether the kubelet can have claims released, or there are none."""
        return self._plugin is None or self._plugin.is_registered

    def update(self, cards: tuple[SchedulableCard, ...]) -> None:
        """Take the cards as gpushared reports them."""
        if self._plugin is not None:
            self._plugin.update(cards)

    def step(self) -> None:
        """Serve, and end after the last claim."""
        if self._plugin is None:
            return
        self._plugin.step()
        if self._clock() < self._asked + LEFT_SECONDS:
            return
        self._asked = self._clock()
        with suppress(UserError):  # it restarts
            left = [f"{claim['namespace']}/{claim['name']}" for claim in self._client.claims()]
            shown = f"{', '.join(left)}: delete their pods" if left else "all are released"
            self._log.note("claims", f"claims of mode dra: {shown}")
            if not left:
                self.close()

    def close(self) -> None:
        """Remove the sockets."""
        if self._plugin is not None:
            self._plugin.close()
            self._plugin = None

    def read(self, namespace: str, name: str) -> AllocatedClaim:
        """Refuse to prepare a claim."""
        raise UserError(f"this node is no longer in mode dra: {namespace}/{name} is not prepared")

    def follow(self, claim: AllocatedClaim) -> None:
        """Nothing is prepared."""

    def refuse(self, claim: AllocatedClaim, why: str) -> None:
        """Nothing is read."""

    def forget(self, uid: str) -> None:
        """Nothing is followed."""

    def update_health(self, faults: Mapping[str, str]) -> None:
        """No status is written."""


def _parameters(claim: AllocatedClaim) -> dict[str, str]:
    """Return the parameters of all devices; UserError if two of them differ."""
    parameters: dict[str, str] = {}
    for device in claim.devices:
        for key, value in device.parameters.items():
            if parameters.setdefault(key, value) != value:
                raise UserError(
                    f"parameters: {key} is {parameters[key]} and {value} for different requests. "
                    "Use one value, or one claim for each"
                )
    return parameters


def _health(card: SchedulableCard) -> int:
    """Return the HealthStatus: a card that is cordoned works."""
    if card.is_working:
        return DRA_HEALTHY
    return DRA_UNHEALTHY if reason_word(card.reason) == "unhealthy" else DRA_UNKNOWN


@dataclass(frozen=True)
class PluginSockets:
    """The socket of the service, and the one by which the kubelet finds it."""

    service: Path
    registration: Path


def plugin_sockets(kubelet: Path, pod_uid: str = "") -> PluginSockets:
    """Return the sockets below the kubelet's root directory; without `pod_uid` of one instance."""
    data, registry = kubelet / "plugins" / DRIVER, kubelet / "plugins_registry"
    if not pod_uid:
        return PluginSockets(data / "dra.sock", registry / f"{DRIVER}-reg.sock")
    names = (
        f"{DRIVER}-{pod_uid}-reg.sock",
        f"{DRIVER}-{_short(pod_uid, 8)}-reg.sock",
        "dra-" + _short(f"{DRIVER}\0{pod_uid}", 16) + "-reg.sock",
    )
    paths = [registry / name for name in names]
    fits = [path for path in paths if len(str(path).encode()) <= PATH_BYTES]
    return PluginSockets(data / f"dra-{pod_uid}.sock", (fits or paths[-1:])[0])


def remove_abandoned(sockets: PluginSockets) -> None:
    """Remove the sockets of instances that were killed: the kubelet would go on calling them."""
    folders = (
        (sockets.service.parent, "dra*.sock"),
        (sockets.registration.parent, f"{DRIVER}-*reg.sock"),
    )
    for folder, pattern in folders:
        for path in folder.glob(pattern):
            if path.is_socket() and not _is_served(path):
                path.unlink(missing_ok=True)


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True  # its queue is full, say
    return True


def _short(text: str, count: int) -> str:
    digest = hashlib.sha256(text.encode()).digest()[:count]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
