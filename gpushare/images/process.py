# SPDX-License-Identifier: Apache-2.0
"""A container that runs: its root is its first process's, and its command line too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpushare.images import directory
from gpushare.images.found import Found, variables_of

if TYPE_CHECKING:
    from gpushare.images.engine import Inspected

_MOST_BYTES: Final = 1 << 20


@contextmanager
def opened(name: str, pid: int, inspected: Inspected | None = None) -> Iterator[Found]:
    """Open the root of process `pid`; NotFound. What the engine says of it is taken where known."""
    with directory.root(f"/proc/{pid}/root") as fd:
        if inspected is not None:
            yield Found("container", name, inspected.variables, inspected.args, fd)
            return
        yield Found(
            "container",
            name,
            variables_of(_strings(pid, "environ")),
            tuple(_strings(pid, "cmdline")),
            fd,
        )


def _strings(pid: int, name: str) -> list[str]:
    try:
        with Path(f"/proc/{pid}/{name}").open("rb") as file:
            data = file.read(_MOST_BYTES)
    except OSError:
        return []
    return [os.fsdecode(part) for part in data.split(b"\0") if part]
