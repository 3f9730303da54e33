# SPDX-License-Identifier: Apache-2.0
"""The eviction worker: the process that calls the checkpoint API, so that gpushared never hangs.

It answers one question after another, as the NVML worker does (cards/worker_main.py), and ends with
gpushared. A call that hangs ends with this process, at the deadline; what that has led to, another
worker asks the driver for. It makes no context, so it holds no memory of a card.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from gpushare.daemon.cards.worker_main import (
    CONNECTION,
    WorkerClosed,
    read_message,
    write_message,
)
from gpushare.daemon.core import privileges


def main() -> None:
    """Answer until gpushared hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    privileges.die_with_parent()
    try:
        privileges.limit_to(privileges.EVICTION_WORKER)
    except OSError as error:
        sys.stderr.write(f"gpushared: the eviction worker keeps its capabilities: {error}\n")
    try:
        serve(CONNECTION)
    except WorkerClosed:
        return


def serve(descriptor: int) -> None:
    """Answer the questions that come on `descriptor`; WorkerClosed at their end."""
    # After privileges are given up.
    from gpushare.daemon.eviction.checkpoint_api import CheckpointApi  # noqa: PLC0415

    loaded: CheckpointApi | None = None
    while True:
        question = read_message(descriptor)
        arguments: dict[str, Any] = question["with"]
        answer: dict[str, Any]
        try:
            if question["ask"] == "load":
                os.environ.update(arguments["env"])
                loaded = CheckpointApi(arguments["library"])
                answer = loaded.describe()
            else:
                answer = getattr(loaded, question["ask"])(**arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is, gpushared has to hear of it
            answer = {"fault": f"{type(error).__name__}: {error}"}
        write_message(descriptor, {"number": question["number"], "answer": answer})
