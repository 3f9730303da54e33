# SPDX-License-Identifier: Apache-2.0
"""The first quarter of an hour with a card, rehearsed: what is carried there, and what comes back.

The machine is Debian in a root of its own, without a network, with the simulated driver, read-only,
in the folder where providers mount NVIDIA's.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare import simulator
from gpushare.simulator import device_file
from tests.stack.distribution import BUILD, Distribution, DistributionRoot
from tools.gpu.__main__ import PARTS, PROBE
from tools.gpu.applications import CUDART

ROOT = Path(__file__).resolve().parents[2]
DEBIAN = Distribution("bare13", BUILD / "bare13", ("/usr/sbin", "/usr/bin"))
DRIVER = "/usr/local/nvidia/lib64"
#: Of Debian's Python there is no PyTorch, and no nvidia-smi of a simulated driver.
MAY_BE_MISSING = {PARTS[part].title for part in ("smi", "torch", "pytorch", "applications")}
ALONE = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
SECTIONS = (*PROBE, "torch", "host", "runc", "evict", "copies", "applications")

pytestmark = pytest.mark.needs("bare13", "package")


@pytest.fixture(scope="module")
def lent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """The folder that the machine shares with this one, and the command that measures there."""
    folder = tmp_path_factory.mktemp("lent")
    subprocess.run(["./dev", "gpu", "pack", "--python", "3.13"], cwd=ROOT, check=True)
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    checkout = folder / "checkout"
    for name in filter(None, names.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, checkout / name, follow_symlinks=False)
    shutil.copytree(ROOT / "build" / "carried", checkout / "build" / "carried")
    shutil.copytree(device_file.libraries(), folder / "driver")
    cards = simulator.create(folder / "cards", cards=2)
    spec = cards.cdi.read_text(encoding="utf-8")
    cards.cdi.write_text(spec.replace(str(device_file.libraries()), DRIVER), encoding="utf-8")
    machine = DistributionRoot(DEBIAN, folder)
    try:
        place = f"mkdir -p {DRIVER} && mount --bind {folder}/driver {DRIVER}"
        read_only = f"mount -o remount,bind,ro {DRIVER}"
        subprocess.run(machine.argv("sh", "-c", f"{place} && {read_only}"), check=True)
        variables = [f"{name}={value}" for name, value in cards.env.items()]
        script = f"{checkout}/tools/gpu/carried.sh"
        argv = machine.argv("env", *variables, "unshare", "--net", "sh", script)
        options = ["--driver", DRIVER, "--cdi", str(cards.cdi)]
        yield folder, [*argv, str(checkout / "build" / "carried"), *options]
    finally:
        machine.close()


def sections(report: Path) -> list[dict[str, Any]]:
    try:
        return list(json.loads(report.read_text())["sections"])
    except (OSError, ValueError):
        return []


def test_a_carried_checkout_measures_without_a_network(lent: tuple[Path, list[str]]) -> None:
    folder, argv = lent
    out = folder / "measured.md"
    done = subprocess.run(
        [*argv, *SECTIONS, "--seconds", "480", "--out", str(out)],
        env=ALONE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    found = sections(out.with_suffix(".json"))
    assert [each["title"] for each in found] == [PARTS[part].title for part in SECTIONS]
    missing = {
        each["title"]
        for each in found
        for row in each["rows"]
        if row["missing"] and row["name"] != "PyTorch"
    }
    assert missing <= MAY_BE_MISSING
    # Carried and started: NVIDIA's runtime library refuses a simulated driver.
    [cudart] = [row for row in found[-1]["rows"] if row["name"] == CUDART]
    assert "cudaMemGetInfo" in cudart["missing"]
