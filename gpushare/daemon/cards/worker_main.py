# SPDX-License-Identifier: Apache-2.0
"""The NVML worker: the process that calls NVML, so that gpushared never hangs in it.

It answers one question after another on descriptor 3, and ends with gpushared: by the signal that
the kernel sends at its death, and where that comes too early by the end of the connection. Started
by worker_process.py as `python -I -S`; it imports little, for it is to be small.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, Final

from gpushare.daemon.cards import worker_protocol
from gpushare.daemon.core import privileges

CONNECTION: Final = 3


def main() -> None:
    """Answer until gpushared hangs up."""
    # A terminal's ^C is for gpushared, which hangs up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    privileges.die_with_parent()
    try:
        privileges.limit_to(privileges.NVML_WORKER)
    except OSError as error:
        sys.stderr.write(f"gpushared: the NVML worker keeps its capabilities: {error}\n")
    try:
        serve(CONNECTION)
    except worker_protocol.WorkerClosed:
        return


def serve(descriptor: int) -> None:
    """Answer the questions that come on `descriptor`; WorkerClosed at their end."""
    from gpushare.daemon.cards import nvml_calls  # noqa: PLC0415 - after privileges are given up

    loaded: nvml_calls.Devices | None = None
    while True:
        question = worker_protocol.read_message(descriptor)
        arguments: dict[str, Any] = question["with"]
        answer: dict[str, Any]
        try:
            if question["ask"] == "load":
                os.environ.update(arguments["env"])
                loaded = nvml_calls.Devices(arguments["library"])
                answer = loaded.describe()
            else:
                answer = getattr(loaded, question["ask"])(**arguments)
        except nvml_calls.NvmlError as error:
            no_limits = error.code in nvml_calls.NO_LIMITS
            answer = {"error": str(error), "code": error.code, "no_limits": no_limits}
        except Exception as error:  # noqa: BLE001 - what a library says may be no text, no list
            answer = {"error": f"NVML sent a response in an unknown format: {error!r}", "code": 0}
        worker_protocol.write_message(descriptor, {"number": question["number"], "answer": answer})
