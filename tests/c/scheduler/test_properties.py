# SPDX-License-Identifier: Apache-2.0
"""What holds whatever tenants do, in simulated time."""

from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tools.model import measure
from tools.model.clock import MS, SECOND, US
from tools.model.machine import MachineModel
from tools.model.policy import ShareStruct
from tools.model.programs import on_and_off, training
from tools.model.tenant import ModelTenant

SECONDS = 3


@dataclass(frozen=True)
class GeneratedTenant:
    """A tenant that runs iterations of kernels, with pauses, and maybe phases of doing nothing."""

    weight: int
    capped: bool
    kernel_us: int
    iteration_ms: int
    pause_us: int
    sleeps_ms: int
    processes: int

    @property
    def wants(self) -> bool:
        """More than any share, all the time."""
        return self.pause_us < 1000 and not self.sleeps_ms and self.processes == 1

    @property
    def tolerance(self) -> float:
        """Points of the card over a second."""
        return 2.5 if self.kernel_us <= 5000 else 4.0  # of 20 ms one in a hundred takes 40


ASKED = st.builds(
    GeneratedTenant,
    weight=st.integers(1, 10),
    capped=st.booleans(),
    kernel_us=st.sampled_from([20, 100, 500, 2000, 5000, 20000]),
    iteration_ms=st.sampled_from([5, 20, 50]),
    pause_us=st.sampled_from([0, 300, 300, 1000, 5000, 30000]),
    sleeps_ms=st.sampled_from([0, 0, 0, 50, 300]),
    processes=st.sampled_from([1, 1, 1, 2]),
)


def start(machine: MachineModel, asked: GeneratedTenant, name: str, permille: int) -> ModelTenant:
    program = training(
        asked.kernel_us * US,
        sigma=0.8 if asked.kernel_us < 2000 else 0.3,
        per=max(1, asked.iteration_ms * 1000 // asked.kernel_us),
        gap_ns=asked.pause_us * US,
    )
    if asked.sleeps_ms:
        program = on_and_off(program, 200 * MS, asked.sleeps_ms * MS)
    share = ShareStruct(permille, capped=asked.capped)
    return machine.tenant(name, program, share, processes=asked.processes)


@settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(ASKED, min_size=1, max_size=5), st.sampled_from([1000, 1000, 700]))
def test_shares_hold_whatever_tenants_do(asked: list[GeneratedTenant], allocated: int) -> None:
    machine = MachineModel()
    weights = sum(each.weight for each in asked)
    tenants = [
        start(machine, each, f"t{at}", max(10, allocated * each.weight // weights))
        for at, each in enumerate(asked)
    ]
    machine.run(SECONDS)
    end = SECONDS * SECOND
    for each, tenant in zip(asked, tenants, strict=True):
        percent = tenant.share.permille / 10
        got = measure.over(tenant, 0, end)
        if each.capped:
            assert max(got) <= percent + each.tolerance
        if each.wants:
            own = 1 - each.pause_us / (each.pause_us + 1000 * each.iteration_ms)
            mean = measure.share(tenant, SECOND, end)
            assert mean >= 0.9 * min(percent, 100 * own) - 1
    charged = sum(machine.gate(tenant).charged_ns for tenant in tenants)
    assert len(tenants) == 1 or charged <= end
    if any(each.wants and not each.capped for each in asked):
        assert measure.longest_pause(tenants, 100 * MS, end) <= 1.5 * MS
        wanted = [tenant for each, tenant in zip(asked, tenants, strict=True) if each.wants]
        assert measure.idle(tenants, SECOND, end) <= 9 or len(wanted) < len(tenants)
