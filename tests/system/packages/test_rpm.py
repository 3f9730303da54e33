# SPDX-License-Identifier: Apache-2.0
"""The rpm: what is in it, and its life on a machine that has nothing of a distribution."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from packages import host_bundle
from packages.workspace import Workspace

from .rpm_machine import RpmMachine, next_rpm

pytestmark = pytest.mark.needs("package")

#: rpm decides what to keep before the undo restores the file.
KEPT = {"/etc/gpushare", "/etc/gpushare/gpushare.yaml.rpmsave"}
#: Imports every module of gpushare, and prints what is mapped from elsewhere.
IMPORTS = """
import importlib, pkgutil, sys
import bz2, ctypes, curses, lzma, socket, sqlite3, ssl, uuid
import grpc, jsonschema, pynvml, tomlkit, yaml
import gpushare
for module in pkgutil.walk_packages(gpushare.__path__, "gpushare."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
assert yaml.CLoader
driver = ctypes.CDLL(sys.argv[1])
words = [line.split() for line in open("/proc/self/maps")]
files = {word[5] for word in words if len(word) > 5 and word[5].startswith("/")}
print(sorted(name for name in files if not name.startswith(sys.prefix)))
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[RpmMachine]:
    """A small machine."""
    found = RpmMachine(tmp_path)
    with found:
        yield found


def test_the_rpm_serves_through_an_upgrade_and_leaves_nothing(
    machine: RpmMachine, workspace: Workspace, rpm: Path, tmp_path: Path
) -> None:
    new = str(machine.sees(next_rpm(workspace, tmp_path / "next")))
    before = machine.files()
    said = machine.rpm("--install", str(machine.sees(rpm)))
    assert "nothing is started yet. To set up this machine, run: gpushare setup" in said
    added = machine.files() - before
    assert not [path for path in added if path.startswith(("/etc/systemd", "/opt", "/run", "/var"))]

    machine.run("gpushare", "setup", "--simulate", "h200")
    with machine.gpushared():
        machine.serves_through(
            lambda: machine.rpm("--upgrade", new),
            lambda: machine.rpm("--erase", "gpushare", check=False),
        )
    machine.rpm("--erase", "gpushare")
    assert machine.files() - before == KEPT


def test_its_python_uses_nothing_of_the_host(machine: RpmMachine, rpm: Path) -> None:
    machine.rpm("--install", str(machine.sees(rpm)))
    prefix = f"{host_bundle.PREFIX}/{rpm.name.split('-')[1]}"
    driver = f"{prefix}/lib/python3.11/site-packages/gpushare/lib/simulator/libnvidia-ml.so.1"
    machine.run("cp", driver, "/opt-driver.so")
    machine.run("rm", "-r", "/lib", "/lib64", "/etc/ld.so.cache")  # runc does not work any more
    python = f"{prefix}/bin/python3"
    printed = machine.run(python, "-I", "-c", IMPORTS, "/opt-driver.so").stdout
    assert printed.strip() == "['/opt-driver.so']"
    child = "import subprocess; subprocess.run(['/bin/busybox', 'env'])"
    environment = machine.run("env", "-i", "KEPT=1", python, "-I", "-c", child).stdout
    assert environment.splitlines() == ["KEPT=1"]


def test_rpmlint_has_nothing_to_say(workspace: Workspace, rpm: Path) -> None:
    configuration = workspace.root / "packaging/rpm/rpmlint.toml"
    done = subprocess.run(
        ["rpmlint", "-c", configuration, rpm], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert "; 0 errors, 0 warnings," in done.stdout
