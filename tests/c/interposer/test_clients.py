# SPDX-License-Identifier: Apache-2.0
"""Programs by others that show a GPU, in a container: they show its slice."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare import abi

from .client import MIB
from .container import ProgramContainer
from .rank import Rank

pytestmark = pytest.mark.needs("clients")
BESIDE = Path(sys.executable).parent
HELD = (10 + 20) * MIB  # a context and a buffer
BUSY = 37


@pytest.fixture
def pid(simulated: ProgramContainer) -> Iterator[int]:
    """A process of the tenant, which has 30 of 100 MiB; another tenant's beside it."""
    simulated.tenant.set_context_bytes(10 * MIB)
    simulated.tenant.set_u32(0, abi.GRANT_CARD_UTILISATION_PERCENT, BUSY)
    own, stranger = Rank(simulated), Rank(simulated.bare())
    own.ask("alloc(20 * MIB)")
    stranger.ask("alloc(500 * MIB)")
    yield own.process.pid
    own.end()
    stranger.end()


def shown(container: ProgramContainer, name: str, *options: str) -> str:
    program = BESIDE / name
    if not program.exists():
        pytest.fail(f"{name} is not installed: run ./dev setup")
    container.env["COLUMNS"] = "120"
    done = container.run(program, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def nvitop(container: ProgramContainer) -> dict[str, Any]:
    """What nvitop's own library says of the card, and of each process on it."""
    done = container.run(
        sys.executable, "-c",
        "import json; from nvitop import Device\n"
        "card, = Device.all()\n"
        "processes = [[pid, int(p.gpu_memory())] for pid, p in card.processes().items()]\n"
        "print(json.dumps(dict(total=card.memory_total(), used=card.memory_used(),"
        " free=card.memory_free(), percent=card.memory_percent(),"
        " busy=card.gpu_utilization(), processes=processes)))",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert isinstance(said, dict)
    return said


def test_nvitop_shows_the_slice(simulated: ProgramContainer, pid: int) -> None:
    slice_ = {"total": 100 * MIB, "used": HELD, "free": 70 * MIB, "percent": 30.0, "busy": BUSY}
    assert nvitop(simulated) == slice_ | {"processes": [[pid, HELD]]}
    screen = shown(simulated, "nvitop", "--once", "--no-unicode")
    assert "30.00MiB / 100.0MiB" in screen
    assert f" {BUSY}% " in screen
    (row,) = [line for line in screen.splitlines() if " C " in line]
    assert f" {pid} " in row
    simulated.tenant.set_memory(25 * MIB)  # below its use: it is full, and no more
    said = nvitop(simulated)
    assert [said[key] for key in ("total", "used", "free")] == [25 * MIB, HELD, 0]
    assert said["percent"] == 120.0


def test_a_process_has_the_pid_of_the_container_s_namespace(simulated: ProgramContainer) -> None:
    """In a namespace of its own the first processes have the first numbers."""
    tenant = Path(__file__).with_name("client.py")
    inside = f"""
        mkfifo "$1/ready"
        {{ cat "{tenant}"; echo 'start(); alloc(20 * MIB); open(sys.argv[1] + "/ready", "w")'
           echo 'sys.stdin.read()'; }} > "$1/tenant.py"
        sleep infinity | "$0" "$1/tenant.py" "$1" &
        echo "[$!]"
        cat "$1/ready"
        "$0" -c 'from nvitop import Device; print(list(Device(0).processes()), end=" ")'
        "$0" -c 'from pynvml import *; nvmlInit(); card = nvmlDeviceGetHandleByIndex(0)
print([one.pid for one in nvmlDeviceGetComputeRunningProcesses(card)])'
    """
    done = simulated.run(
        "unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc",
        "sh", "-c", inside, sys.executable, simulated.tenant.directory,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    own, lists = done.stdout.splitlines()
    assert lists == f"{own} {own}", done.stderr
    assert json.loads(own)[0] < 20
