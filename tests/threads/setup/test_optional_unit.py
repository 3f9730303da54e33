# SPDX-License-Identifier: Apache-2.0
"""`gpushare setup --metrics` and `--kubernetes`: units that may do as little as it takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpushare.setup.optional_unit import EXPORTER, NODE, OptionalUnit
from tests.unit.setup.test_optional_unit import OPTIONS
from tests.unit.setup.test_setup import setup

FOLDER = Path("etc/systemd/system")
each_unit = pytest.mark.parametrize("unit", [EXPORTER, NODE], ids=lambda unit: unit.program)


@each_unit
def test_a_unit_is_written_on_request_and_removed_by_undo(
    machine: Path,
    unit: OptionalUnit,
) -> None:
    place, link = FOLDER / unit.name, FOLDER / "multi-user.target.wants" / unit.name
    assert setup(machine).exit_code == 0
    assert not (machine / place).exists()
    result = setup(machine, *OPTIONS[unit])
    assert result.exit_code == 0, result.output
    program = Path(sys.prefix) / "bin" / unit.program
    assert f"\nExecStart={program}\n" in (machine / place).read_text()
    assert (machine / link).readlink() == Path("/") / place
    again = setup(machine, *OPTIONS[unit])
    assert "do    " not in again.output
    assert setup(machine, "--undo").exit_code == 0
    assert not (machine / place).exists()
    assert not (machine / link).is_symlink()


@pytest.mark.parametrize(("unit", "exposure"), [(EXPORTER, 20), (NODE, 30)])
def test_systemd_takes_the_unit_and_finds_it_hardened(
    tmp_path: Path, unit: OptionalUnit, exposure: int
) -> None:
    text = unit.text()
    program = tmp_path / unit.program
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    file = tmp_path / unit.name
    file.write_text(text.replace(str(Path(sys.prefix) / "bin" / unit.program), str(program)))
    done = analyze("verify", str(file))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    # Of 10, which is a service that may do everything; below 2 systemd calls it OK.
    done = analyze("security", "--offline=true", f"--threshold={exposure}", str(file))
    assert done.returncode == 0, done.stdout


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)
