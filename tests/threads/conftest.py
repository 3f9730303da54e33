# SPDX-License-Identifier: Apache-2.0
"""Tests of single parts that need threads, processes or sockets. Their number only falls."""

from __future__ import annotations

from tests import properties

properties.load_profile()
