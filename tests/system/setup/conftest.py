# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from tests.unit.setup.conftest import machine

__all__ = ["machine"]
