# SPDX-License-Identifier: Apache-2.0
"""Measures the process that runs this file; a .pth file has each Python of .venv run it.

Whatever starts a program, and with which environment, its lines are recorded for the test that the
environment names when the program ends. A program that cannot write the record ends as it would
without it.

gpushared starts its workers as `python -I -S`, which reads no .pth file, and kills them: here they
start without -S, and write their record five times a second.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any, Final

import coverage

#: Names the test, without its parameters.
TEST_VARIABLE: Final = "GPUSHARE_MEASURED_TEST"
ROOT: Final = Path(__file__).resolve().parents[2]
RECORDS: Final = ROOT / "build/coverage/records"
_WORKER: Final = "gpushare_worker"  # an option of such a worker's interpreter

_measuring: list[coverage.Coverage] = []


def _begin() -> None:
    """Begin a record; a process that was forked leaves its parent's to the parent."""
    if _measuring:
        _measuring.pop().stop()
    made = coverage.Coverage(
        data_file=str(RECORDS / "record"),
        data_suffix=True,
        auto_data=False,
        config_file=False,
        include=[f"{ROOT}/gpushare/*"],
        messages=False,
    )
    made.set_option("run:disable_warnings", ["no-data-collected", "no-collected-ctx"])
    made.start()
    _measuring.append(made)


def _save() -> None:
    measuring = _measuring[-1]
    with contextlib.suppress(Exception):
        measuring._data.set_context(os.environ.get(TEST_VARIABLE, ""))
        measuring.save()


def _saving_first(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def saved(*arguments: Any) -> Any:
        _save()
        return function(*arguments)

    return saved


def _terminated(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - signal's
    _save()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _with_site(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def started(path: str, argv: Sequence[str], *arguments: Any, **options: Any) -> Any:
        if argv[:3] == [sys.executable, "-I", "-S"]:
            argv = [argv[0], "-X", _WORKER, argv[1], *argv[3:]]
        return function(path, argv, *arguments, **options)

    return started


def _save_often() -> None:
    while True:
        time.sleep(0.2)
        _save()


def main() -> None:
    """Measure this process until it ends, executes another program or is terminated."""
    if coverage.Coverage.current():
        return  # .venv has its folder under two names
    _begin()
    atexit.register(_save)
    os.register_at_fork(after_in_child=_begin)
    for name in ("_exit", "execv", "execve"):
        setattr(os, name, _saving_first(getattr(os, name)))
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)
    os.posix_spawn = _with_site(os.posix_spawn)
    if _WORKER in sys._xoptions:
        threading.Thread(target=_save_often, daemon=True).start()


if __name__ == "__main__":
    main()
