# SPDX-License-Identifier: Apache-2.0
"""What a user is told instead of a traceback."""

from __future__ import annotations


class UserError(Exception):
    """Its text is a sentence for the user: what is wrong, with which value, and what to do next."""
