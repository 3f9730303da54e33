# SPDX-License-Identifier: Apache-2.0
"""What is decided of cards and their tenants: pure, no clock, socket or logger."""

from gpushare.daemon.policy.compute import shares
from gpushare.daemon.policy.reservation import FIXED, policy_on, reserved_cores
from gpushare.daemon.policy.share import Claim, Share

__all__ = ["FIXED", "Claim", "Share", "policy_on", "reserved_cores", "shares"]
