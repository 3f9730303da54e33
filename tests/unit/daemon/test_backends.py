# SPDX-License-Identifier: Apache-2.0
"""Which backend a tenant gets, and which is refused in words."""

from __future__ import annotations

import pytest

from gpushare.daemon.state import DaemonState
from gpushare.quota.errors import QuotaError

from .operations import opened


@pytest.mark.parametrize(
    ("backend", "why"),
    [
        ("mig", "needs a MIG instance, and no card of this node has one"),
        ("exclusive", "applies to a whole card, and this request is for a share"),
        ("driver", r"needs memory limits, which driver 580.* does not have"),
    ],
)
def test_a_backend_that_cannot_hold_a_share_is_refused(
    node: DaemonState, backend: str, why: str
) -> None:
    with pytest.raises(QuotaError, match=f"^--backend={backend}: {why}"):
        opened(node, memory="4GiB", backend=backend)
    assert not node.ledger.entries
