# SPDX-License-Identifier: Apache-2.0
"""Starts the programs of child/ and speaks with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from gpushare.verify.runners import ProbeTenant

from .report import NotMeasured

SECONDS = 120.0


def child(name: str, *arguments: str) -> list[str]:
    """Return the command line of child/`name`.py."""
    return [sys.executable, "-m", f"tools.gpu.child.{name}", *arguments]


def environment(*layers: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment, in which a child finds what this process imports."""
    merged = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    for layer in layers:
        merged.update(layer)
    return merged


def ask(argv: Sequence[str], env: Mapping[str, str], seconds: float = SECONDS) -> dict[str, Any]:
    """Run `argv` to its end; return the JSON object it prints last. NotMeasured when it fails."""
    done = run(argv, env, seconds)
    lines = done.stdout.strip().splitlines()
    try:
        found = json.loads(lines[-1])
    except (IndexError, ValueError) as error:
        raise NotMeasured(f"{_name(argv)} ended with {done.returncode}: {_words(done)}") from error
    if not isinstance(found, dict):
        raise NotMeasured(f"{_name(argv)} printed {lines[-1]!r}")
    return found


def run(
    argv: Sequence[str], env: Mapping[str, str], seconds: float = SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run `argv` with no input; NotMeasured when it cannot start or does not end."""
    try:
        return subprocess.run(
            list(argv),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NotMeasured(f"{_name(argv)} did not end within {seconds:g} s") from error
    except OSError as error:
        raise NotMeasured(f"{_name(argv)}: {error.strerror}") from error


class Child(ProbeTenant):
    """A program that holds a conversation; several can be given their commands at once."""

    def __enter__(self) -> Child:
        return self

    def receive(self, command: str) -> dict[str, Any]:
        """Return the answer to `command`; NotMeasured when it is an error."""
        found = self.answer(command.split(maxsplit=1)[0])
        if "error" in found:
            raise NotMeasured(f"{self.name}, {command}: {found['error']}")
        return found

    def ask(self, command: str) -> dict[str, Any]:
        self.tell(command)
        return self.receive(command)


def _name(argv: Sequence[str]) -> str:
    return argv[2] if argv[1:2] == ["-m"] else argv[0]


def _words(done: subprocess.CompletedProcess[str]) -> str:
    said = (done.stderr.strip() or done.stdout.strip() or "nothing said").splitlines()
    return " | ".join(said[-3:])
