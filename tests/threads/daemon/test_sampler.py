# SPDX-License-Identifier: Apache-2.0
"""What the driver says, put beside what tenants say: never a false refusal, never a frame-up."""

from __future__ import annotations

import threading

from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.observe.non_tenant import NonTenantUse
from tests.unit.daemon.fakes import GIB
from tests.unit.daemon.test_sampler import CARD


def test_a_probe_may_be_excluded_while_non_tenants_are_counted() -> None:
    """It is, on the calibration thread, again and again."""
    non_tenants = NonTenantUse(60)
    for pid in (1, 2):
        non_tenants.excuse(pid, 5.0)
    late = threading.Thread(target=lambda: non_tenants.excuse(3, 5.0))

    class Now(float):
        """The moment of a look in the middle of which one more is excused."""

        def __sub__(self, other: float) -> float:
            if late.ident is None:
                late.start()
                late.join(0.2)  # it may have to wait for the look
            return float(self) - other

    probe = (ProcessUse(3, GIB),)
    non_tenants.observe(Now(5.0), CARD, probe, first=False)
    late.join()
    assert non_tenants.observe(6.0, CARD, probe, first=True).non_tenants == ()
