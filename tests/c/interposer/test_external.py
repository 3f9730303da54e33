# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403, F405 - a program in the words of client.py
"""Memory of other interfaces is charged until nothing in its import is left."""

from __future__ import annotations

from .client import *
from .inside import inside


@inside()
def test_buffers_in_a_destroyed_import_keep_its_charge() -> None:
    holds = begin()
    imported = import_external(60 * MIB)
    parts = [buffer_in(imported, 20 * MIB, n * 20 * MIB) for n in range(2)]
    free(parts[0])
    destroy_external(imported)
    holds(60)
    free(parts[1])
    holds(0)
