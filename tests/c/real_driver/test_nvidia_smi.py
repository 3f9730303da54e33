# SPDX-License-Identifier: Apache-2.0
"""nvidia-smi without the kernel module, and the nodes that NVIDIA's libraries make."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.real_driver import RealDriver
from tools.gpu import nodes

from .conftest import Place

DRIVER_NOT_LOADED = 9
#: As an engine starts a container's root without the right to make nodes, and with it.
CONFINED = ("setpriv", "--bounding-set", "-mknod", "--inh-caps", "-mknod")
#: What it leaves in /dev is printed after it.
AND_NODES = ("sh", "-c", '"$@"; status=$?; ls /dev; exit $status', "sh")


@pytest.mark.parametrize("confined", [CONFINED, ()], ids=["confined", "root"])
def test_nvidia_smi_ends_alike_in_a_share(
    confined: tuple[str, ...], real_driver: RealDriver, bare: Place, share: Place
) -> None:
    if not real_driver.program("nvidia-smi").exists():
        assert real_driver.release == "525"
        return
    command: tuple[str | Path, ...] = (*AND_NODES, *confined, real_driver.program("nvidia-smi"))
    alone, shared = bare.run(*command), share.run(*command)
    assert alone.returncode == DRIVER_NOT_LOADED
    assert (shared.returncode, shared.stdout, shared.stderr) == (
        alone.returncode, alone.stdout, alone.stderr,
    )  # fmt: skip
    assert ("nvidiactl" in alone.stdout.split()) == (confined == ())


def test_the_section_nodes_sees_what_the_library_makes(real_driver: RealDriver) -> None:
    env = {"LD_LIBRARY_PATH": str(real_driver.libraries)}
    cuda = real_driver.libraries / "libcuda.so.1"
    driver: Any = SimpleNamespace(cuda=cuda, env=env, uuid="GPU-0")
    made = {row.value for row in nodes.rows(driver) if row.name.endswith(": made")}
    before = f"/dev/shm/{nodes.SHARED} (-rw-r--r-- nobody)"
    assert made == {"/dev/nvidiactl", f"/dev/nvidiactl, {before}"}
