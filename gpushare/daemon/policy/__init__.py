# SPDX-License-Identifier: Apache-2.0
"""The compute policies: pure, no clock, socket or logger.

In this version they decide what is reserved and nothing else: no gate is closed, so a share is
promised and shown but not held (`HELD`).
"""

from gpushare.daemon.policy.reservation import HELD, reserved_cores

__all__ = ["HELD", "reserved_cores"]
