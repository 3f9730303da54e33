# SPDX-License-Identifier: Apache-2.0
"""The process that writes the metrics history: gpushared starts it, and starts it again if it ends.

It ends when its standard input does, which is when gpushared does. A line on its standard output is
what is wrong from now on, an empty one that nothing is.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from pathlib import Path
from typing import Final

from gpushare.client import Client
from gpushare.errors import UserError
from gpushare.history.retention import INTERVAL_SECONDS
from gpushare.history.store import HistoryStore, HistoryUnwritable

_NICE: Final = 10
_OOM_SCORE: Final = 500  # rather than a container or gpushared
_AGAIN_SECONDS: Final = 30  # after a failure: a large file takes long to open
_ANSWER_SECONDS: Final = 8.0
_START_SECONDS: Final = 1.0


def main(arguments: list[str]) -> None:
    """Write until standard input ends; `arguments` are those of gpushared."""
    socket, folder, days, most_bytes, gid = arguments
    _give_way()
    store = HistoryStore(
        Path(folder),
        days=float(days),
        most_bytes=int(most_bytes) if most_bytes else None,
        gid=int(gid) if gid else None,
    )
    client = Client(Path(socket), _ANSWER_SECONDS, start_seconds=_START_SECONDS)
    told: str | None = None
    wait = 0.0  # the first sample is there at once
    while not _has_ended(wait):
        fault = _sample(client, store)
        if fault != told:
            with contextlib.suppress(BrokenPipeError):  # gpushared was killed: nobody reads it
                os.write(1, f"{fault}\n".encode())
            told = fault
        # At the multiples of the interval: what begins again has the same times.
        wait = (
            _AGAIN_SECONDS if store.is_closed else INTERVAL_SECONDS - time.time() % INTERVAL_SECONDS
        )
    store.close()


def _sample(client: Client, store: HistoryStore) -> str:
    """Add a sample; return what is wrong."""
    try:
        metrics = client.metrics()
        store.write(time.time(), metrics)
    except HistoryUnwritable as error:
        return f"it cannot be written: {error}"
    except UserError as error:
        return str(error)
    return store.notice


def _has_ended(seconds: float) -> bool:
    """Wait so long; whether standard input has ended."""
    return bool(select.select([0], [], [], seconds)[0]) and not os.read(0, 64)


def _give_way() -> None:
    """Let everything else go first."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE), encoding="ascii")


if __name__ == "__main__":
    main(sys.argv[1:])
