# SPDX-License-Identifier: Apache-2.0
"""The `gpushare` command: one file per command, each one function over gpushare/client.py.

Exit status: 0 ok, 1 error, 2 usage, 3 refused, 4 degraded; `gpushare run` returns its command's.
"""

from __future__ import annotations

from gpushare.cli.group import gpushare


def main() -> None:
    """Run the command line of this process."""
    gpushare(prog_name="gpushare")
