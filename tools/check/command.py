# SPDX-License-Identifier: Apache-2.0
"""Runs one command of a check."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
LINES_SHOWN = 60
# The checkers of .venv, whether or not it is on PATH.
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


class Failure(Exception):
    """A check did not hold; the message is what to show."""


def run(*command: str | Path, env: Mapping[str, str] | None = None, telling: str = "") -> str:
    """Run `command` in the repository's root and return what it printed.

    Raises:
        Failure: it exited non-zero, or the program is missing; shows those lines of the output
            that have `telling` in them, once each.
    """
    try:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=os.environ | {"PATH": PATH, **(env or {})},
            check=False,
        )
    except FileNotFoundError:
        raise Failure(f"{command[0]} is missing: ./dev setup brings it") from None
    if done.returncode != 0:
        lines = done.stdout.rstrip().splitlines()
        shown = list(dict.fromkeys(lines)) if telling else lines
        shown = [line for line in shown if telling in line] or lines
        if len(shown) > LINES_SHOWN:
            shown = [f"... {len(shown) - LINES_SHOWN} lines above", *shown[-LINES_SHOWN:]]
        line = shlex.join(str(word) for word in command)
        raise Failure("\n".join([f"$ {line[:400]}", *shown, f"exit status {done.returncode}"]))
    return done.stdout
