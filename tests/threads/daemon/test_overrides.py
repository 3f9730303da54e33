# SPDX-License-Identifier: Apache-2.0
"""What is kept on disk beside the ledger: the operator's settings, measured contexts."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from gpushare.daemon.cards import context_size
from gpushare.daemon.cards.context_size import (
    ContextProbe,
    DriverFigures,
    measure_context,
)
from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.cards.rounding import NOT_MEASURED, Rounding
from tests.unit.daemon.fakes import MIB, FakeDriver, card


def probe(folder: Path, code: str) -> ContextProbe:
    program = folder / "probe"
    program.write_text(f"#!{sys.executable}\n{code}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return ContextProbe(program, Path("/lib/libcuda.so.1"), {"GPUSHARE_SIM_DEVICE": "/sim"})


SPEAKS = """
import json, os, sys
assert sys.argv[1:] == ["--library", "/lib/libcuda.so.1", "--card", "0", "context"], sys.argv
assert os.environ["GPUSHARE_SIM_DEVICE"] == "/sim"
for event in ("driver", "context"):
    print(json.dumps({"event": event, "code": 0}), flush=True)
for line in sys.stdin:
    print(json.dumps({"event": "alloc", "code": 0}), flush=True)
"""


def test_a_context_has_the_size_of_the_probes_once_it_is_stable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, excused = FakeDriver(), list[int]()
    figures = iter([100, 300, 500, 500, 502, 502, 502 + 4 * 4, 502 + 4 * 4])

    def grow() -> None:
        driver.uses = {
            card().uuid: (ProcessUse(1, 9 * MIB), ProcessUse(excused[0], next(figures) * MIB))
        }

    driver.during = grow
    monkeypatch.setattr(context_size, "_LOOK_SECONDS", 0.001)
    found = measure_context(card(), driver, probe(tmp_path, SPEAKS), excused.append)
    assert found == DriverFigures(500 * MIB, Rounding(0, 2 * MIB))
    assert len(set(excused)) == 1
    assert not Path(f"/proc/{excused[0]}").exists()


def test_a_probe_that_ends_after_its_context_has_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older one knows the context alone."""
    driver, excused = FakeDriver(), list[int]()

    def grow() -> None:
        driver.uses = {card().uuid: (ProcessUse(excused[0], 500 * MIB),)}

    driver.during = grow
    monkeypatch.setattr(context_size, "_LOOK_SECONDS", 0.001)
    ends = SPEAKS.partition("for line in")[0] + "sys.stdin.readline()\n"
    found = measure_context(card(), driver, probe(tmp_path, ends), excused.append)
    assert found == DriverFigures(500 * MIB, NOT_MEASURED)


@pytest.mark.parametrize(
    "code",
    [
        "",
        "print('not json')",
        'print(\'{"event": "context", "code": 2}\', flush=True); input()',
        "import sys; sys.exit(3)",
    ],
)
def test_a_probe_that_fails_is_no_figure(tmp_path: Path, code: str) -> None:
    assert measure_context(card(), FakeDriver(), probe(tmp_path, code), lambda _: None) is None


def test_no_probe_is_no_figure(tmp_path: Path) -> None:
    missing = ContextProbe(tmp_path / "none", tmp_path, {})
    assert measure_context(card(), FakeDriver(), missing, lambda _: None) is None
