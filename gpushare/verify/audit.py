# SPDX-License-Identifier: Apache-2.0
"""The audit scenario: a tenant that calls the driver past the library is detected, and acted on.

The probe opens the driver's own library, which every tenant has beside the interposer, and
allocates more than its quota. That is all: nothing is forged or hidden, so that what is tested is
the audit as it is configured. The attacks that hide are in the project's tests.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from gpushare import abi
from gpushare.client import Client
from gpushare.errors import UserError
from gpushare.protocol.rows import TenantStatus
from gpushare.quota.size import exact_size, format_size
from gpushare.verify import ScenarioSteps
from gpushare.verify.runners import ProbeFailed, ProbeTenant

QUOTA_BYTES: Final = 1 << 30
TAKEN_BYTES: Final = 2 << 30  # a twentieth of the smallest card that is worth sharing
NEEDED_BYTES: Final = QUOTA_BYTES + TAKEN_BYTES
DETECT_SECONDS: Final = 20.0  # two samples a second, and a machine that does other things
#: From the detection: `kill` waits two seconds for the container to free memory.
ACT_SECONDS: Final = {"observe": 3.0, "warn": 20.0, "freeze": 20.0, "kill": 30.0}
_Result = TypeVar("_Result")
_POLL_SECONDS: Final = 0.02
_DONE: Final = {
    "warn": "gpushared warned of it, and did no more, as audit.over_quota says",
    "freeze": "gpushared froze it",
    "kill": "gpushared killed it",
}


@dataclass(frozen=True)
class AuditTrial:
    """Where it is tested: card `index`, with the daemon of `client`."""

    index: int
    client: Client


@dataclass
class AuditScenario(ScenarioSteps):
    """One tenant exceeds its quota past the library; the time until each step is measured."""

    trial: AuditTrial | None = None

    def run(self) -> bool:
        """Run the scenario; return whether all checks passed."""
        self.report.title("A tenant calls the driver past the library")
        try:
            self._run()
        except (ProbeFailed, UserError) as error:
            self.report.check("the test tenant responds", False, error)
        return self.report.passed

    def _run(self) -> None:
        assert self.trial is not None
        quota = {"memory": exact_size(QUOTA_BYTES), "devices": str(self.trial.index)}
        # The driver itself: the interposer library has it from there.
        top = abi.HOST_DIR if self.engine.name == "host" else abi.CONTAINER_DIR
        with self.spawned("bypass", quota, "--library", f"{top}/driver/libcuda.so.1") as tenant:
            try:
                tenant.start()
                self._take(tenant)
            finally:
                self._stop(tenant)

    def _take(self, tenant: ProbeTenant) -> None:
        row = self._wait(self._row, DETECT_SECONDS)
        if row is None:
            raise ProbeFailed(f"gpushare ps does not show {tenant.name}")
        taken = tenant.ask(f"alloc cuMemAlloc {TAKEN_BYTES}")
        begin = time.monotonic()
        if taken["code"] != 0 and row["isolation"] == "driver":
            self.report.check("the driver itself refuses more than the quota", True)
            return
        claim = f"it allocates {format_size(TAKEN_BYTES)} past the library, of a quota of "
        if not self.report.check(claim + format_size(QUOTA_BYTES), taken["code"] == 0, taken):
            return
        detected = self._wait(lambda: self._gone_or(tenant, _is_detected), DETECT_SECONDS)
        seconds = time.monotonic() - begin
        if not self.report.check(
            f"the audit detected it after {seconds:.2f} s" if detected else "the audit detected it",
            bool(detected),
            f"not within {DETECT_SECONDS:.0f} s",
            {"detected_seconds": seconds if detected else None},
        ):
            return
        self._acted(tenant, row["over_quota_action"], begin)

    def _acted(self, tenant: ProbeTenant, action: str, begin: float) -> None:
        """Check that gpushared does what is configured, and no more."""
        done = {
            "warn": lambda: self._gone_or(tenant, lambda row: bool(row["warnings"])),
            "freeze": lambda: self._gone_or(tenant, _is_frozen),
            "kill": lambda: tenant.process.poll() is not None,
        }
        seconds = ACT_SECONDS[action]
        if action == "observe":
            acted = self._wait(lambda: self._gone_or(tenant, _is_acted_on), seconds)
            claim = "nothing was done about it: audit.over_quota is observe"
            self.report.check(claim, not acted, "gpushared froze or killed it")
            self.report.say("To act on such a container, set audit.over_quota to freeze or kill.")
            return
        acted = self._wait(done[action], seconds)
        took = time.monotonic() - begin
        claim = f"{_DONE[action]} after {took:.2f} s" if acted else _DONE[action]
        figures = {"acted_seconds": took if acted else None}
        self.report.check(claim, bool(acted), f"not within {seconds:.0f} s", figures)
        if acted and action == "warn":
            self.report.say("To act on such a container, set audit.over_quota to freeze or kill.")

    def _stop(self, tenant: ProbeTenant) -> None:
        """End the tenant: a frozen one does not see that its input is closed."""
        assert self.trial is not None
        row = self._row()
        if row is not None and tenant.process.poll() is None:
            self.trial.client.stop(row["key"], "KILL", 0, "gpushare audit --self-test")
            self._wait(lambda: tenant.process.poll() is not None, DETECT_SECONDS)

    def _row(self) -> TenantStatus | None:
        assert self.trial is not None
        name = self.full_name("bypass")
        rows = self.trial.client.tenants()
        # containerd's names are namespace/id.
        return next((row for row in rows if row["name"].rpartition("/")[2] == name), None)

    def _gone_or(self, tenant: ProbeTenant, condition: Callable[[TenantStatus], bool]) -> bool:
        """Whether the tenant is killed, or `condition` holds for its row."""
        row = self._row()
        return tenant.process.poll() is not None if row is None else condition(row)

    @staticmethod
    def _wait(condition: Callable[[], _Result], seconds: float) -> _Result:
        deadline = time.monotonic() + seconds
        while not (result := condition()) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return result


def _is_detected(row: TenantStatus) -> bool:
    return any(card["over_quota_state"] for card in row["cards"]) or _is_frozen(row)


def _is_frozen(row: TenantStatus) -> bool:
    return any(intervention["by"] == "audit" for intervention in row["interventions"])


def _is_acted_on(row: TenantStatus) -> bool:
    return bool(row["interventions"])
