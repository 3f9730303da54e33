# SPDX-License-Identifier: Apache-2.0
"""What processor time commands of `gpushare` take, beside `docker ps`."""

from __future__ import annotations

import resource
import site
import sys
import venv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.stack import Stack
from tests.stack.program import find

from .idle import tenants
from .native import ROOT
from .result import Result
from .turns import Times, spawn, take

TENANTS = 3
ROUNDS = 30
BASELINE = "docker ps"
#: The most milliseconds of user and system time, those of the bare interpreter included.
BUDGETS_MS = {"--help": 120.0, "ls": 120.0, "why": 150.0, "ps": 150.0, "set": 150.0}


def measure() -> Iterator[Result]:
    """Compare each command, in an environment as a package installs it, with `docker ps`."""
    with Stack() as stack:
        stack.start_containerd()
        stack.start_docker()
        stack.start_daemon()
        python = _interpreter(stack.root / "python")
        with tenants(stack, TENANTS):
            name = stack.client.tenants()[0]["key"]
            words = {
                "--help": ("--help",),
                "ls": ("ls",),
                "why": ("why", name),
                "ps": ("ps",),
                "set": ("set", name, "--cores", "30"),
            }
            run: Callable[..., Times] = partial(_run, stack)
            commands = {
                command: partial(run, (python, "-m", "gpushare.cli", *words[command]))
                for command in BUDGETS_MS
            }
            series = take(
                {
                    BASELINE: partial(run, (find("docker"), "ps")),
                    "python": partial(run, (python, "-c", "pass")),
                    **commands,
                },
                ROUNDS,
            )
    for command, budget in ("python", None), *BUDGETS_MS.items():
        shown = "the bare interpreter" if command == "python" else f"gpushare {command}"
        name = f"{shown}, processor time, beside {BASELINE}"
        result = series.compare("processor", command, BASELINE, name=name, budget=budget)
        yield replace(result, absolute=True)


def _interpreter(folder: Path) -> str:
    """Return a Python without the start-up files of a development environment."""
    venv.create(folder, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    known = [str(ROOT), *site.getsitepackages()]
    (packages / "gpushare.pth").write_text("".join(f"{path}\n" for path in known))
    return str(folder / "bin" / Path(sys.executable).name)


def _run(stack: Stack, argv: Sequence[str]) -> Times:
    before = _children_ms()
    spawn(argv, stack.environment, stack.root / "bench.log")
    return {"processor": _children_ms() - before}


def _children_ms() -> float:
    """Return the time for which children that have ended have run."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) * 1000
