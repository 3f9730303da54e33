# SPDX-License-Identifier: Apache-2.0
"""The process that asks NVML hangs, dies and talks nonsense; gpushared waits for none of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpushare import simulator
from gpushare.daemon.cards import nvml_client, worker_process
from gpushare.daemon.cards.driver_client import (
    DriverError,
    DriverLimits,
    DriverTimeout,
    InvalidSample,
)
from gpushare.daemon.cards.nvml_client import Nvml
from tests.system.waiting import wait_until
from tests.unit.daemon import scripted_worker
from tests.unit.daemon.fakes import GIB
from tests.unit.daemon.scripted_worker import CARD, LOOK

CGROUP = Path("/sys/fs/cgroup/x")
CALLS: dict[str, Callable[[Nvml], object]] = {
    "load": lambda driver: driver.open(),
    "look": lambda driver: driver.sample(),
    "set_limits": lambda driver: driver.set_limits("GPU-0", CGROUP, DriverLimits(GIB, GIB)),
    "limits": lambda driver: driver.limits("GPU-0", CGROUP),
}


@dataclass
class Puppet:
    """A worker that acts as configured, and the client that queries it."""

    file: Path
    driver: Nvml

    def obey(self, **orders: Any) -> None:
        self.file.write_text(json.dumps(orders))

    @property
    def pid(self) -> int:
        assert self.driver._worker is not None
        return self.driver._worker.pid


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Puppet]:
    file = tmp_path / "orders"
    file.write_text("{}")
    argv = [sys.executable, "-I", "-S", scripted_worker.__file__, str(file)]
    monkeypatch.setattr(worker_process, "worker_command", lambda: argv)
    monkeypatch.setattr(nvml_client, "_FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(nvml_client, "_LONGEST_WAIT_SECONDS", 0.01)
    driver = Nvml(Path("/x/libnvidia-ml.so.1"), {}, 2.0)
    yield Puppet(file, driver)
    driver.close()


def answers(call: Callable[[Nvml], object], driver: Nvml) -> bool:
    try:
        call(driver)
    except DriverError:
        return False
    return True


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_the_worker_reports_the_drivers_figures(worker: Puppet) -> None:
    worker.driver.open()
    assert worker.driver.driver_version == "615.10"
    assert worker.driver.cuda_version == "13.0"
    assert worker.driver.has_limits
    [card] = worker.driver.cards()
    assert (card.uuid, card.memory_bytes) == ("GPU-0", 140 * GIB)
    [use] = worker.driver.sample().uses["GPU-0"]
    assert (use.pid, use.bytes, use.utilisation) == (7, GIB, 40)
    assert worker.driver.limits("GPU-0", CGROUP) == DriverLimits(GIB, 2 * GIB)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("order", ["die", "garbage", "long", "half", "list", "other", "deep"])
def test_a_worker_that_dies_or_talks_nonsense_is_replaced(
    worker: Puppet, call: str, order: str
) -> None:
    ask = CALLS[call]
    if call != "load":
        worker.driver.open()
    worker.obey(**{call: order})
    with pytest.raises(DriverError):
        ask(worker.driver)
    worker.obey()
    wait_until(lambda: answers(ask, worker.driver))
    assert worker.driver.sample().generation.loads == 1


@pytest.mark.parametrize("call", CALLS)
def test_a_hung_worker_delays_nothing_and_is_killed(
    worker: Puppet, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = CALLS[call]
    if call != "load":
        worker.driver.open()
    worker.driver._deadline = 0.2
    worker.obey(**{call: "hang"})
    with pytest.raises(DriverTimeout, match=r"did not respond within 0\.2 s"):
        ask(worker.driver)
    with pytest.raises(DriverTimeout, match="is not responding"):
        worker.driver.sample()
    hung = worker.pid
    wait_until(lambda: Path(f"{worker.file}-hangs").exists() or is_gone(hung))
    worker.obey()
    monkeypatch.setattr(worker.driver, "_deadline", 5.0)
    wait_until(lambda: answers(ask, worker.driver))
    wait_until(lambda: is_gone(hung))
    assert worker.driver.sample().generation.loads == 1


def test_a_slow_worker_is_waited_for_and_stays(worker: Puppet) -> None:
    worker.driver.open()
    pid = worker.pid
    worker.driver._deadline = 0.2
    worker.obey(look="slow 0.4")
    with pytest.raises(DriverTimeout):
        worker.driver.sample()
    worker.obey()
    wait_until(lambda: answers(CALLS["look"], worker.driver))
    assert worker.pid == pid
    assert worker.driver.sample().generation.loads == 0


def test_a_library_that_takes_long_to_load_is_waited_for_at_the_next_call(worker: Puppet) -> None:
    worker.driver._deadline = 0.3
    worker.obey(load="slow 0.6")
    with pytest.raises(DriverTimeout):
        worker.driver.open()
    pid, loaded = worker.pid, threading.Event()
    worker.driver.afterwards(loaded.set)
    assert loaded.wait(20)
    worker.driver.open()
    assert worker.pid == pid


def test_workers_that_cannot_be_killed_are_few(
    worker: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hangs in the kernel: here its pidfd is never readable, and then it is."""
    stuck = True
    real = worker_process.WorkerProcess._is_dead
    monkeypatch.setattr(
        worker_process.WorkerProcess,
        "_is_dead",
        lambda self, seconds: not stuck and real(self, seconds),
    )
    worker.obey(load="die")
    for _ in range(worker_process.MOST_ABANDONED):
        wait_until(lambda: not answers(CALLS["load"], worker.driver))
        worker.driver._not_before = 0.0
    wait_until(lambda: len(worker_process._abandoned) == worker_process.MOST_ABANDONED)
    worker.obey()
    worker.driver._not_before = 0.0
    with pytest.raises(DriverTimeout, match="3 processes hang in the NVIDIA driver"):
        worker.driver.open()
    stuck = False
    worker.driver._not_before = 0.0
    worker.driver.open()
    assert worker_process._abandoned == []


def test_a_driver_that_refuses_limits_is_not_queried_again(worker: Puppet) -> None:
    worker.driver.open()
    refusal = {"error": "NVML: Not Supported", "code": 3, "no_limits": True}
    worker.obey(answers={"set_limits": refusal})
    with pytest.raises(DriverError, match="Not Supported"):
        CALLS["set_limits"](worker.driver)
    assert not worker.driver.has_limits


@pytest.mark.parametrize(
    "look",
    [
        {"driver": "620.1", "cards": [LOOK], "xids": []},
        {"driver": "615.10", "cards": [{**LOOK, "parts": ["MIG-1"]}], "xids": []},
        {"driver": "615.10", "cards": [LOOK, {**LOOK, "index": 1, "uuid": "GPU-1"}], "xids": []},
        {"driver": "615.10", "cards": [{**LOOK, "index": 1}], "xids": []},
    ],
    ids=["version", "mig", "another", "index"],
)
def test_another_driver_or_card_has_the_library_loaded_anew(
    worker: Puppet, look: dict[str, Any]
) -> None:
    worker.driver.open()
    before, pid = worker.driver.sample().generation, worker.pid
    cards = [
        {**CARD, **{key: said[key] for key in ("index", "uuid", "parts")}} for said in look["cards"]
    ]
    load = {**scripted_worker.ANSWERS["load"], "driver": look["driver"], "cards": cards}
    worker.obey(answers={"look": look, "load": load})
    after = worker.driver.sample().generation
    assert after != before
    assert after.loads == 0
    assert worker.pid != pid
    again = worker.pid
    assert worker.driver.sample().generation == after
    assert worker.pid == again


def test_a_card_that_does_not_answer_is_looked_for_in_a_new_process(
    worker: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.driver.open()
    pid = worker.pid
    lost = {"index": 0, "uuid": "GPU-0", "code": 15, "error": "NVML: GPU is lost"}
    worker.obey(answers={"look": {"driver": "615.10", "cards": [lost], "xids": []}})
    assert worker.driver.sample().health == {"GPU-0": "NVML: GPU is lost"}
    before = worker.driver.sample().generation
    monkeypatch.setattr(worker.driver, "_again_seconds", 0.0)
    worker.obey(load="die", answers={"look": {"driver": "615.10", "cards": [lost], "xids": []}})
    assert worker.driver.sample().health
    assert worker.pid == pid, "the one that works goes on where no other does"
    assert worker.driver._again_seconds == 0.0
    worker.obey()
    assert worker.driver.sample().health == {}
    assert worker.pid != pid
    assert worker.driver._again_seconds == nvml_client._AGAIN_SECONDS
    assert worker.driver.sample().generation.cards == before.cards


def test_a_card_that_is_listed_no_more_stays_known(worker: Puppet) -> None:
    both = [CARD, {**CARD, "index": 1, "uuid": "GPU-1"}]
    load = {**scripted_worker.ANSWERS["load"], "cards": both}
    looks = [LOOK, {**LOOK, "index": 1, "uuid": "GPU-1"}]
    worker.obey(answers={"load": load, "look": {"driver": "615.10", "cards": looks, "xids": []}})
    worker.driver.open()
    left = {"driver": "615.10", "cards": [{**looks[1], "index": 0}], "xids": []}
    load = {**load, "cards": [{**both[1], "index": 0}]}
    worker.obey(answers={"load": load, "look": left})
    health = worker.driver.sample().health
    assert health == {"GPU-0": "no longer listed by the driver"}
    assert [(card.index, card.uuid) for card in worker.driver.cards()] == [
        (0, "GPU-1"),
        (1, "GPU-0"),
    ]


def test_an_xid_is_reported_once_even_in_a_rejected_sample(worker: Puppet) -> None:
    worker.driver.open()
    lie = {**LOOK, "used": 1 << 60}
    worker.obey(answers={"look": {"driver": "615.10", "cards": [lie], "xids": [["GPU-0", 79]]}})
    with pytest.raises(InvalidSample):
        worker.driver.sample()
    worker.obey()
    assert worker.driver.sample().xids == (("GPU-0", 79),)
    assert worker.driver.sample().xids == ()


def test_a_renewed_library_is_loaded_by_another_process(worker: Puppet) -> None:
    worker.driver.open()
    pid = worker.pid
    worker.obey(answers={"load": {**scripted_worker.ANSWERS["load"], "driver": "620.1"}})
    worker.driver.renew(Path("/y/libnvidia-ml.so.1"), {})
    assert worker.pid != pid
    assert is_gone(pid)
    assert worker.driver.driver_version == "620.1"


def test_the_worker_ends_with_the_daemon_and_has_few_privileges(tmp_path: Path) -> None:
    """The real one, on simulated cards, started by a process that is killed."""
    made = simulator.create(tmp_path / "cards", "t4")
    program = (
        "import sys, time; from pathlib import Path\n"
        "from gpushare.daemon.cards.nvml_client import Nvml\n"
        "driver = Nvml(Path(sys.argv[1]), {'GPUSHARE_SIM_DEVICE': sys.argv[2]}, 20)\n"
        "driver.open(); print(driver._worker.pid, flush=True); time.sleep(1000)"
    )
    library = simulator.libraries() / "libnvidia-ml.so.1"
    daemon = subprocess.Popen(
        [sys.executable, "-c", program, str(library), str(made.device)], stdout=subprocess.PIPE
    )
    try:
        assert daemon.stdout is not None
        pid = int(daemon.stdout.readline())
        status = Path(f"/proc/{pid}/status").read_text()
        [capabilities] = [line for line in status.splitlines() if line.startswith("CapEff")]
        assert int(capabilities.split()[1], 16) & ~(1 << 21 | 1 << 27) == 0
        open_files = {Path(f"/proc/{pid}/fd/{fd}").readlink() for fd in (0, 1)}
        assert open_files == {Path("/dev/null")}
        # Stopped, as in a call that never returns: it does not read that the connection ended.
        os.kill(pid, signal.SIGSTOP)
    finally:
        daemon.kill()
        daemon.communicate()
    wait_until(lambda: is_gone(pid) or "Z (zombie)" in _status(pid))


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "Z (zombie)"


def test_closing_ends_it(worker: Puppet) -> None:
    worker.driver.open()
    pid = worker.pid
    worker.driver.close()
    wait_until(lambda: is_gone(pid))
