# SPDX-License-Identifier: Apache-2.0
"""Cards, tenants and the scheduler's loop together: a run."""

from tools.model.clock import US, Clock
from tools.model.hardware import CardHardware, CardTiming
from tools.model.policy import (
    CLOSED,
    FOREVER,
    CardPolicy,
    GateStruct,
    SeenStruct,
    ShareStruct,
    align,
)
from tools.model.tenant import ModelTenant, Program, TenantSlot

DECIDE_NS = 50 * US  # from a wake-up or a timer to the written gate
WAKE_NS = 50 * US  # from there to a thread that waited


class GatedDevice:
    """A card and its policy; none: everything passes, as without us."""

    def __init__(self, clock: Clock, gated: bool, timing: CardTiming | None) -> None:
        self.clock = clock
        self.card = CardHardware(clock, timing)
        self.policy = CardPolicy(switch_ns=self.card.timing.drained_ns) if gated else None
        self.places: list[TenantSlot] = []
        self.gates: list[GateStruct] = []
        self.seen: list[SeenStruct] = []
        self.decisions = 0
        self.gangs: list[Gang] = []
        self._due = FOREVER
        self._timer = 0

    def add(self, share: ShareStruct) -> TenantSlot:
        """A tenant's place here."""
        place = TenantSlot(self.clock, self.wake)
        if self.policy is not None:
            place.number = self.policy.add(share, self.clock.now)
            place.mode = CLOSED
            self.gates.append(self.policy.gate(place.number))
            self.seen.append(SeenStruct())
        self.places.append(place)
        self.wake(place)
        return place

    def wake(self, _place: TenantSlot) -> None:
        """A wake-up: decide soon."""
        if self.policy is not None:
            self.look(self.clock.now)

    def look(self, when: int) -> None:
        """Decide at `when`, unless it is done earlier."""
        when += DECIDE_NS
        if when < self._due:
            self._due = when
            self._timer += 1
            self.clock.at(when, self._decide, self._timer)

    def _decide(self, timer: int) -> None:
        if timer != self._timer:
            return
        assert self.policy is not None
        self.decisions += 1
        now = self.clock.now
        for place, seen in zip(self.places, self.seen, strict=True):
            if place.changed:
                place.see(seen)
                self.policy.see(place.number, seen)
        due = self.policy.decide(now)
        for place, gate in zip(self.places, self.gates, strict=True):
            self._write(place, gate)
        self._due = FOREVER
        if due != FOREVER:
            self.look(max(due, now + DECIDE_NS) - DECIDE_NS)
        for gang in self.gangs:
            gang.align()

    def _write(self, place: TenantSlot, gate: GateStruct) -> None:
        mode, bound, pieces = gate.mode, gate.in_flight_max_ns, gate.pieces_min
        place.wait_max = gate.wait_max_ns
        if (mode, bound, pieces) == (place.mode, place.in_flight_max, place.pieces_min):
            return
        place.mode, place.in_flight_max, place.pieces_min = mode, bound, pieces
        place.timing_interval_ns = gate.timing_interval_ns
        if mode != CLOSED:
            for thread in place.waiting:
                self.clock.at(self.clock.now + WAKE_NS, thread.resume)


class Gang:
    """A tenant on several cards."""

    def __init__(self, devices: list[GatedDevice], places: list[TenantSlot]) -> None:
        self.devices = devices
        self.places = [
            device.policy.place(place.number)
            for device, place in zip(devices, places, strict=True)
            if device.policy is not None
        ]
        for device in devices:
            device.gangs.append(self)

    def align(self) -> None:
        """A card that has to be decided again is due at once."""
        for at in align(self.places):
            self.devices[at].look(self.devices[at].clock.now - DECIDE_NS)


class MachineModel:
    """Cards and the tenants on them."""

    def __init__(
        self, *, cards: int = 1, gated: bool = True, timing: CardTiming | None = None
    ) -> None:
        self.clock = Clock()
        self.gated = gated
        self.devices = [GatedDevice(self.clock, gated, timing) for _ in range(cards)]
        self.tenants: list[ModelTenant] = []

    def tenant(
        self, name: str, program: Program, share: ShareStruct, *, processes: int = 1,
        cards: tuple[int, ...] = (0,),
    ) -> ModelTenant:  # fmt: skip
        """A container that starts now."""
        tenant = ModelTenant(self.clock, name, share, program, processes)
        devices = [self.devices[card] for card in cards]
        tenant.places = [device.add(share) for device in devices]
        if len(devices) > 1 and self.gated:
            Gang(devices, tenant.places)
        tenant.start([device.card for device in devices])
        self.tenants.append(tenant)
        return tenant

    def change(self, tenant: ModelTenant, share: ShareStruct) -> None:
        """`gpushare set`, while it runs."""
        for place in tenant.places:
            for device in self.devices:
                if place in device.places and device.policy is not None:
                    device.policy.change(place.number, share, self.clock.now)
                    device.wake(place)

    def gate(self, tenant: ModelTenant) -> GateStruct:
        """Return the gate of a tenant's first card."""
        policy = self.devices[0].policy
        assert policy is not None
        return policy.gate(tenant.places[0].number)

    def on(self, card: int) -> list[ModelTenant]:
        """The tenant that has a place on the card."""
        places = self.devices[card].places
        return [tenant for tenant in self.tenants if any(p in places for p in tenant.places)]

    def run(self, seconds: float) -> "MachineModel":
        """Let time pass."""
        self.clock.run(self.clock.now + int(seconds * 1e9))
        for device in self.devices:
            device.card.settle()
        return self
