# SPDX-License-Identifier: Apache-2.0
"""The metrics history: the figures of cards and containers over time (docs/adr/0033)."""

from __future__ import annotations

from typing import Final

FOLDER: Final = "metrics-history"  # in state_dir
