# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.gpu` as a whole, on the simulated driver and without any."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.gpu import __main__ as main
from tools.gpu import checkpoint
from tools.gpu import driver as found
from tools.gpu.driver import DriverPaths, NoWorkingDriver
from tools.gpu.process import environment
from tools.gpu.report import GpuReport, ReportRow

ROOT = Path(__file__).resolve().parents[3]


def test_without_a_driver_it_says_so_in_one_line_and_exits_77(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.gpu", "probe", "--driver", tmp_path],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (77, "")
    assert done.stdout == f"gpu: no NVIDIA driver to measure: no libcuda.so.1 in {tmp_path}\n"


def test_a_machine_whose_loader_knows_no_driver_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found, "found", lambda _: [])
    with pytest.raises(NoWorkingDriver, match=r"^no libcuda\.so\.1$"):
        found.find()


def test_a_library_that_does_not_work_is_no_driver(tmp_path: Path) -> None:
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(NoWorkingDriver, match=r"libcuda\.so\.1 does not work: .*file too short"):
        found.find(tmp_path)


def test_a_driver_that_knows_no_card_is_none(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSHARE_SIM_DEVICE", str(tmp_path / "nothing"))
    with pytest.raises(NoWorkingDriver, match="does not work: cuInit: CUDA_ERROR"):
        found.find(libraries)


def test_a_mistyped_argument_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main.main(["prove"])
    assert exit_.value.code == 2
    assert "invalid choice" in capsys.readouterr().err


def test_all_measures_everything_that_probe_does_and_more() -> None:
    everything = main.chosen(["all"])
    assert everything[: len(main.PROBE)] == [*main.PROBE] == main.chosen(["probe"])
    assert len(everything) > len(main.PROBE)


def test_parts_are_measured_once_and_in_their_own_order() -> None:
    assert main.chosen(["coverage", "probe", "symbols"]) == [*main.PROBE, "coverage"]


def test_no_part_is_begun_once_the_time_is_over_and_the_report_says_so(
    driver: DriverPaths, tmp_path: Path
) -> None:
    report = GpuReport({"model": driver.model, "date": "2026-01-02"})
    out = tmp_path / "report"
    main.measure(driver, ["machine", "coverage"], report, out, seconds=0)
    assert [section.title for section in report.sections] == [
        *(main.PARTS[part].title for part in ("machine", "coverage")),
    ]
    assert {row.missing for row in report.rows} == {"0 of 0 seconds had passed"}
    assert "## Every lookup by every allocation path" in out.with_suffix(".md").read_text()


def test_results_are_written_before_the_next_part_begins(
    driver: DriverPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_: DriverPaths) -> Iterator[ReportRow]:
        yield ReportRow("first", 1)
        raise KeyboardInterrupt

    out = tmp_path / "report"
    monkeypatch.setitem(main.PARTS, "symbols", main.Part("Killed", killed))
    report = GpuReport({"model": driver.model, "date": "2026-01-02"})
    with pytest.raises(KeyboardInterrupt):
        main.measure(driver, ["machine", "symbols"], report, out, math.inf)
    assert "## The machine" in out.with_suffix(".md").read_text()


@pytest.mark.usefixtures("namespaces")
def test_the_probe_runs_through_on_the_simulated_driver(
    driver: DriverPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.md"
    assert driver.named is not None
    status = main.main(["probe", "--driver", str(driver.named), "--out", str(out)])
    shown = capsys.readouterr().out
    assert status == 0, shown
    report = json.loads(out.with_suffix(".json").read_text())
    assert report["facts"]["model"] == driver.model
    assert [section["title"] for section in report["sections"]] == [
        *(main.PARTS[part].title for part in main.PROBE),
    ]
    rows = {row["name"]: row for section in report["sections"] for row in section["rows"]}
    assert rows["libcuda: missing"]["value"] == 0
    assert rows["libcuda: not in the table"]["value"] == 0
    assert rows["card 0: UUID"]["value"].startswith("GPU-")
    limits = rows["card 0: memory limits on cgroups"]["value"]
    assert limits == "this driver has no nvmlDeviceGetMemoryLimits_v1"
    assert out.read_text().startswith(f"# {driver.model}, ")


#: What measures times, by itself for many seconds: each of them has tests of its own.
TIMED = {"slices", "throughput", "handover", "latency", "shares", "training"}
WHOLE = [part for part in main.PARTS if part not in TIMED]
#: What a machine of the tests need not have, or a driver in a folder has not.
MAY_BE_MISSING = {
    *("smi", "mps-tenants", "checkpoint", "torch", "cupy", "host", "runc", "pytorch"),
}


@pytest.mark.usefixtures("namespaces")
def test_the_whole_of_it_runs_through_on_the_simulated_driver(
    driver: DriverPaths,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "report"
    monkeypatch.setattr(checkpoint, "SIZES", (64 << 20,))
    status = main.main([*WHOLE, "--driver", str(driver.named), "--out", str(out)])
    assert status == 0, capsys.readouterr().out
    report = json.loads(out.with_suffix(".json").read_text())
    sections = {section["title"]: section["rows"] for section in report["sections"]}
    assert [*sections] == [main.PARTS[part].title for part in WHOLE]
    for part in WHOLE:
        missing = [row for row in sections[main.PARTS[part].title] if row["missing"]]
        if part in MAY_BE_MISSING:
            continue
        # cudart asks whether a driver is genuine, which the simulated one does not answer.
        assert [row for row in missing if not row["name"].startswith("cudart")] == [], part
    text = out.with_suffix(".md").read_text()
    assert [title for title in sections if f"## {title}\n" not in text] == []
    coverage = {row["name"]: row for row in sections["Every lookup by every allocation path"]}
    assert (
        coverage["procaddress-v1: every allocation path gives the quota and not more"]["held"]
        is True
    )
    assert coverage["graph: charged"]["value"] == coverage["graph: NVML, of the process"]["value"]
