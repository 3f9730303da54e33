# SPDX-License-Identifier: Apache-2.0
"""The size of a CUDA context on a card: measured once per model and driver version, then kept.

`gpushare-probe` makes a context against the real driver, and NVML says what its process then holds.
Where that cannot be done (a card that is full) it is tried again later; until then the size is 0: a
quota below one context is not refused, and what contexts take is overhead, counted a second later.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpushare.daemon.cards.driver_client import DriverError
from gpushare.daemon.cards.nvml_client import Nvml
from gpushare.daemon.core.log import log
from gpushare.daemon.placement.model import Card
from gpushare.host.mounts import WITH_OWN_SHARED_MEMORY
from gpushare.oci.bounded_read import replace_file

_START_SECONDS: Final = 60.0  # a first context on a machine without persistence mode takes 10 s
_WAIT_SECONDS: Final = 6.0  # less than a launcher waits for its answer
_LOOK_SECONDS: Final = 0.1
_LOOKS: Final = 100


class ContextSizes:
    """The sizes, kept in `directory`. Any thread may ask."""

    def __init__(self, directory: Path, driver_version: str) -> None:
        self._file = directory / "contexts.json"
        self._driver_version = driver_version
        self._lock = threading.Lock()
        # By the driver's version, and the card's model; replaced, never changed.
        self._measured: Mapping[str, Mapping[str, int]] = self._read()
        self._settled = threading.Event()
        self._patience = 0.0

    @property
    def sizes(self) -> Mapping[str, int]:
        """The bytes that a context takes, by the card's model; one that is not in it is not known.

        They are of the driver in use.
        """
        return self._measured.get(self._driver_version, {})

    def renew(self, driver_version: str) -> bool:
        """Keep the figures of another driver from now on; whether it is another."""
        with self._lock:
            if driver_version == self._driver_version:
                return False
            self._driver_version = driver_version
        self._settled.clear()
        return True

    def expect(self) -> None:
        """Note that the missing figures are being measured."""
        self._patience = time.monotonic() + _WAIT_SECONDS

    def settle(self) -> None:
        """Note that what could be measured has been."""
        self._settled.set()

    def wait(self) -> None:
        """Wait for figures that are being measured; not past `_WAIT_SECONDS` from the beginning.

        A tenant that does not know it could hold its contexts beside its quota.
        """
        self._settled.wait(max(0.0, self._patience - time.monotonic()))

    def is_measured(self, card: Card) -> bool:
        """Whether the figure is known."""
        return card.model in self.sizes

    def keep(self, card: Card, context_bytes: int) -> None:
        """Note a measured size, and write all to disk."""
        with self._lock:
            sizes = {**self.sizes, card.model: context_bytes}
            measured = self._measured = {**self._measured, self._driver_version: sizes}
        log("context-size-measured", model=card.model, bytes=context_bytes)
        try:
            replace_file(self._file, (json.dumps(measured, indent=1) + "\n").encode(), 0o600)
        except OSError as error:
            # A cache: it is measured again next time.
            log("context-size-write-failed", "warning", file=str(self._file), error=str(error))

    def _read(self) -> Mapping[str, Mapping[str, int]]:
        try:
            contents = json.loads(self._file.read_text(encoding="utf-8"))
            return {
                version: {model: int(size) for model, size in sizes.items() if int(size) > 0}
                for version, sizes in contents.items()
            }
        except (OSError, ValueError, AttributeError, TypeError, RecursionError):
            return {}


@dataclass(frozen=True)
class ContextProbe:
    """gpushare-probe, and the environment to run it in against `library`, the driver's libcuda."""

    program: Path
    library: Path
    env: Mapping[str, str]


def measure_context(
    card: Card, driver: Nvml, probe: ContextProbe, excuse: Callable[[int], None]
) -> int | None:
    """Return the size of a context on `card`, None (logged) if it is not known.

    `excuse` is called with the pid of the program that is run.
    """
    # A process has one MIG instance, and it has to name it.
    visible = {"CUDA_VISIBLE_DEVICES": card.uuid} if card.instance else {}
    number = 0 if card.instance else card.index
    argv = [str(probe.program), "--library", str(probe.library), "--card", str(number)]
    try:
        program = subprocess.Popen(
            [*WITH_OWN_SHARED_MEMORY, *argv, "context"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **probe.env, **visible},
            cwd="/",
        )
    except OSError as error:
        error_text = f"{probe.program}: {error.strerror}"
        log("context-size-measurement-failed", "warning", model=card.model, error=error_text)
        return None
    with program:
        excuse(program.pid)
        watchdog = threading.Timer(_START_SECONDS, program.kill)
        watchdog.start()
        try:
            return _measured(program, card, driver, excuse)
        except (DriverError, ValueError) as error:
            log("context-size-measurement-failed", "warning", model=card.model, error=str(error))
            return None
        finally:
            watchdog.cancel()
            program.kill()


def _measured(
    program: subprocess.Popen[bytes],
    card: Card,
    driver: Nvml,
    excuse: Callable[[int], None],
) -> int:
    """Return what the driver says the probe has with its context, once nothing changes."""
    assert program.stdout is not None
    answer: dict[str, Any] = {}
    for line in program.stdout:
        answer = json.loads(line)
        if answer.get("event") == "context":
            break
    else:
        raise ValueError(f"gpushare-probe exited; its last output was {answer}")
    if answer.get("code") != 0:
        raise ValueError(f"gpushare-probe did not create a context: {answer}")
    last = None
    for _ in range(_LOOKS):
        excuse(program.pid)
        uses = driver.figures().uses.get(card.uuid, ())
        now = next((use.bytes for use in uses if use.pid == program.pid), None)
        if now and now == last:
            return now
        last = now
        time.sleep(_LOOK_SECONDS)
    raise ValueError("the driver does not report the memory of gpushare-probe")
