# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from tests.unit.kubernetes.conftest import api, certificate, cluster, connect

__all__ = ["api", "certificate", "cluster", "connect"]
