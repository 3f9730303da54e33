# SPDX-License-Identifier: Apache-2.0
"""An NVML worker that does as a test says: each line of its file is for one question of a kind.

`hang`, `die`, `garbage`, `long`, `half`, `list`, `other` (number), `slow SECONDS`; nothing: it
answers well. Run as `python scripted_worker.py FILE`, with the connection on descriptor 3.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

GIB = 1 << 30
CARD = {
    "index": 0,
    "uuid": "GPU-0",
    "model": "H200",
    "memory": 140 * GIB,
    "minor": 0,
    "datacenter": True,
    "brand": "nvidia",
    "capability": [9, 0],
    "parts": None,
    "instances": [],
    "bus_id": "00000000:0F:00.0",
}
LOOK = {
    "index": 0,
    "uuid": "GPU-0",
    "parts": None,
    "instances": [],
    "total": 141 * GIB,
    "used": 2 * GIB,
    "mode": "",
    "compute": [[7, GIB, None]],
    "graphics": [],
    "mps": [],
    "shares": [[7, 40, 5, 6]],
    "busy": 40,
}
ANSWERS: dict[str, dict[str, Any]] = {
    "load": {"driver": "615.10", "cuda": "13.0", "cards": [CARD], "lost": [], "limits": True},
    "look": {
        "driver": "615.10",
        "cards": [LOOK],
        "xids": [],
        "sensors": {"GPU-0": {"temperature_celsius": 41, "power_milliwatts": 250500}},
    },
    "xids": {"xids": []},
    "set_limits": {},
    "limits": {"soft": GIB, "hard": 2 * GIB},
}


def say(message: object) -> None:
    os.write(3, json.dumps(message).encode() + b"\n")


def obey(order: str, number: int, answer: dict[str, Any]) -> None:
    word, _, seconds = order.partition(" ")
    if word == "hang":
        Path(f"{sys.argv[1]}-hangs").touch()
        time.sleep(1000)
    elif word == "die":
        os._exit(7)
    elif word == "garbage":
        os.write(3, b"\xff{[\n")
    elif word == "long":
        os.write(3, b"[" * (9 << 20))
    elif word == "half":
        os.write(3, b"{")
        os._exit(0)
    elif word == "list":
        say([number, answer])
    elif word == "deep":
        os.write(3, b"[" * 100000 + b"\n")
    else:
        time.sleep(float(seconds or 0))
        say({"number": number + (word == "other"), "answer": answer})


def main() -> None:
    orders = Path(sys.argv[1])
    for line in open(3, "rb", closefd=False):  # noqa: SIM115 - a descriptor
        question = json.loads(line)
        told = json.loads(orders.read_text())
        answers = {**ANSWERS, **told.get("answers", {})}
        obey(told.get(question["ask"], ""), question["number"], answers[question["ask"]])


if __name__ == "__main__":
    main()
