# SPDX-License-Identifier: Apache-2.0
"""The user's gpushare.yaml is completed, with its comments, and undo takes only that back."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.unit.setup.machine import write
from tests.unit.setup.test_install import snapshot
from tests.unit.setup.test_setup import setup

SPEC = "/var/lib/gpushare/driver.json"
MARKED = f"cdi_spec: {SPEC}  # added by gpushare setup"
SECTION = f"driver: {{cdi_spec: {SPEC}}}  # added by gpushare setup\n"
COMPLETED = {
    "reserve: 1GiB # mine\n": f"reserve: 1GiB # mine\n{SECTION}",
    "": SECTION,
    "reserve: 1GiB": f"reserve: 1GiB\n{SECTION}",
    "driver:\n    # mine\n    libraries: /opt/x\naudit: {}\n": (
        f"driver:\n    # mine\n    {MARKED}\n    libraries: /opt/x\naudit: {{}}\n"
    ),
    "driver: # later\nreserve: 1GiB\n": f"driver: # later\n  {MARKED}\nreserve: 1GiB\n",
    "driver: {libraries: /opt/x}\n": f"driver: {{cdi_spec: {SPEC}, libraries: /opt/x}}\n",
}


@pytest.mark.parametrize("theirs", COMPLETED)
def test_a_missing_key_is_added_and_taken_back(machine: Path, theirs: str) -> None:
    file = machine / "etc/gpushare/gpushare.yaml"
    write(file, theirs)
    before = snapshot(machine)
    result = setup(machine)
    assert result.exit_code == 0, result.output
    assert "complete /etc/gpushare/gpushare.yaml with driver.cdi_spec" in result.stdout
    assert file.read_text() == COMPLETED[theirs]
    assert "(edited by you)" in setup(machine).stdout
    assert setup(machine, "--undo").exit_code == 0
    assert snapshot(machine) == before


def test_edits_after_it_stay(machine: Path) -> None:
    file = machine / "etc/gpushare/gpushare.yaml"
    write(file, "# mine\nreserve: 1GiB\n")
    setup(machine, "--kubernetes", "plugin")
    loaded = yaml.safe_load(file.read_text())
    assert loaded == {
        "reserve": "1GiB",
        "driver": {"cdi_spec": SPEC},
        "kubernetes": {"mode": "plugin"},
    }
    file.write_text(file.read_text() + "max_tenants: 4\n")
    assert "do    " not in setup(machine).stdout
    setup(machine, "--undo")
    assert file.read_text() == "# mine\nreserve: 1GiB\nmax_tenants: 4\n"


@pytest.mark.parametrize("theirs", ["{reserve: 1GiB}\n", "- a\n", "a: [\n", "reserve: 1GiB\n...\n"])
def test_a_file_without_a_place_for_it_is_refused(machine: Path, theirs: str) -> None:
    write(machine / "etc/gpushare/gpushare.yaml", theirs)
    before = snapshot(machine)
    result = setup(machine)
    assert result.exit_code == 1
    assert "/etc/gpushare/gpushare.yaml" in result.stderr
    assert snapshot(machine) == before
