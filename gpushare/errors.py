# SPDX-License-Identifier: Apache-2.0
"""The base class of errors that are shown to the user without a traceback."""

from __future__ import annotations


class UserError(Exception):
    """An error for the user; its message has the problem, the value and the fix."""
