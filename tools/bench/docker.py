# SPDX-License-Identifier: Apache-2.0
"""`docker run` from beginning to end, as a user waits for it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gpushare.verify import image
from tests.stack import Stack
from tests.stack.program import find

from .native import FLOOR, exec_only
from .result import Result
from .turns import Times, spawn, take

ROUNDS = 40
BUDGET_MS = 6.0
BUSYBOX = "/bin/busybox"
CACHE = "/etc/ld.so.cache"


def measure() -> Iterator[Result]:
    """Compare a container with a share of a GPU to the same one under runc."""
    with Stack() as stack:
        stack.start_containerd()
        floor = exec_only(stack.runtime, stack.root)
        runtimes = {"exec-only": {"path": str(floor)}}
        (stack.root / "daemon.json").write_text(json.dumps({"runtimes": runtimes}))
        stack.start_docker()
        stack.start_daemon()
        extra = {BUSYBOX: Path(find("busybox")).read_bytes(), CACHE: Path(CACHE).read_bytes()}
        subprocess.run(
            ["docker", "load"],
            input=image.build(stack.installation.probe, extra),
            env=stack.environment,
            capture_output=True,
            check=True,
        )
        share = ("--runtime=gpushare", "--env", "GPUSHARE_MEMORY=4GiB")
        series = take(
            {
                "runc": _run(stack, ()),
                FLOOR: _run(stack, ("--runtime=exec-only",)),
                "gpushare": _run(stack, share),
            },
            ROUNDS,
        )
    name = "docker run --rm, whole"
    yield series.compare("docker run", "gpushare", "runc", name=name, budget=BUDGET_MS, floor=FLOOR)


def _run(stack: Stack, flags: Sequence[str]) -> Callable[[], Times]:
    argv = [
        find("docker"),
        "run",
        "--rm",
        "--network",
        "none",
        *flags,
        image.TAG,
        BUSYBOX,
        "true",
    ]
    return lambda: {"docker run": spawn(argv, stack.environment, stack.root / "bench.log")}
