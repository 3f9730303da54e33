# SPDX-License-Identifier: Apache-2.0
"""Takes a process off its cards and puts it back: python -m tools.gpu.child.checkpoint LIBCUDA PID.

The answer has the result of each step. A process that the driver refuses is left unlocked.
"""

from __future__ import annotations

import json
import sys

from gpushare.daemon.eviction.worker_main import CheckpointApi

LOCK_MS = 10_000


def main(library: str, pid: int) -> None:
    api = CheckpointApi(library)
    (locked,) = api.lock([pid], LOCK_MS)["answers"]
    steps = {"lock": locked}
    if not locked["code"]:
        steps["checkpoint"] = api.checkpoint(pid)
        if not steps["checkpoint"]["code"]:
            steps["restore"] = api.restore(pid, ())
        steps["unlock"] = api.unlock(pid)
    sys.stdout.write(json.dumps({"steps": steps}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
