# SPDX-License-Identifier: Apache-2.0
"""The driver is upgraded beneath a running daemon."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.config import Config
from gpushare.daemon.lifecycle import driver_loader
from gpushare.daemon.node import NoDriver
from gpushare.daemon.views.daemon_status import status_row
from gpushare.host import cdi_files, driver
from gpushare.oci import cdi
from gpushare.oci.driver_files import DriverFiles, from_cdi
from tests.unit.host.layouts import DEBIAN, Host, ubuntu_server

from . import fakes
from .bundles import BundleToCreate
from .fakes import FakeDaemon, FakeDriver

SHARE = "GPUSHARE_MEMORY=4GiB"
NEWER = "590.10.01"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A machine with the driver that the node's NVML is of."""
    made = ubuntu_server(tmp_path / "host")
    upgrade(made, FakeDriver.driver_version)
    monkeypatch.setattr(driver_loader, "ROOT", made.root)
    return made


@pytest.fixture
def node(tmp_path: Path, host: Host) -> Iterator[FakeDaemon]:
    """A node whose spec is its own, of that driver."""
    del host
    config = Config(cdi=tmp_path / "state/driver.json")
    with fakes.node(tmp_path, config=config) as made:
        assert made.node.driver is not None
        made.node.driver = replace(
            made.node.driver, files=driver_loader.load_driver_files(made.node.config)
        )
        made.node.fingerprint = driver_loader.driver_fingerprint(
            made.node.driver.files, simulated=False
        )
        yield made


def install(host: Host, version: str) -> None:
    """Put the files of another version in place, as a package manager does."""
    shutil.rmtree(host.root / DEBIAN.lstrip("/"))
    host.version = version
    host.write(f"{DEBIAN}/libc.so.6")
    host.libraries(DEBIAN, {"libcuda": "1", "libnvidia-ml": "1", "libnvidia-ptxjitcompiler": "1"})


def upgrade(host: Host, version: str) -> None:
    install(host, version)
    host.write("proc/driver/nvidia/version", f"NVRM version: x  Kernel Module  {version}  Wed\n")


@pytest.fixture
def nvml(node: FakeDaemon) -> FakeDriver:
    made = node.node.loaded().nvml
    assert isinstance(made, FakeDriver)
    return made


def create(node: FakeDaemon, folder: Path) -> str:
    """Create a container; return the real libcuda that it has."""
    container = BundleToCreate(folder, SHARE, identity=folder.name)
    container.create(node)
    mounts = {entry["destination"]: entry["source"] for entry in container.document()["mounts"]}
    return str(mounts["/opt/gpushare/driver/libcuda.so.1"])


def test_libraries_without_their_module_are_not_used(
    node: FakeDaemon, host: Host, tmp_path: Path
) -> None:
    assert create(node, tmp_path / "before").endswith(FakeDriver.driver_version)
    install(host, NEWER)
    with pytest.raises(NoDriver) as caught:
        create(node, tmp_path / "meanwhile")
    text = str(caught.value)
    assert f"libraries are {NEWER}, and its kernel module is {FakeDriver.driver_version}" in text
    assert "reboot" in text
    assert len(node.ledger.entries) == 1
    assert text in status_row(node)["warnings"]


def test_files_that_disappeared_are_not_used(node: FakeDaemon, host: Host, tmp_path: Path) -> None:
    for path in (host.root / DEBIAN.lstrip("/")).glob("libcuda*"):
        path.unlink()
    with pytest.raises(NoDriver, match="Install NVIDIA's driver"):
        create(node, tmp_path / "b")


def test_a_new_driver_with_its_module_is_loaded_and_used(
    node: FakeDaemon, host: Host, tmp_path: Path
) -> None:
    upgrade(host, NEWER)
    assert create(node, tmp_path / "b").endswith(NEWER)
    assert node.node.loaded().nvml.driver_version == NEWER
    assert not node.node.driver_fault
    written = json.loads((node.node.config.state_dir / "driver.json").read_text())
    assert any(NEWER in mount["hostPath"] for mount in written["containerEdits"]["mounts"])


def test_a_new_driver_that_does_not_answer_is_not_used(
    node: FakeDaemon, nvml: FakeDriver, host: Host, tmp_path: Path
) -> None:
    nvml.refuses_to_load = "NVML: Driver/library version mismatch"
    upgrade(host, NEWER)
    with pytest.raises(NoDriver, match="is not responding: NVML: Driver/library version mismatch"):
        create(node, tmp_path / "meanwhile")
    nvml.refuses_to_load = ""
    assert create(node, tmp_path / "b").endswith(NEWER)


def test_a_driver_whose_version_differs_from_its_files_is_not_used(
    node: FakeDaemon, nvml: FakeDriver, host: Host, tmp_path: Path
) -> None:
    nvml.version_of = lambda _: "585.1"
    upgrade(host, NEWER)
    with pytest.raises(NoDriver, match=f"libraries are {NEWER}, and the driver reports 585.1"):
        create(node, tmp_path / "b")


def test_a_spec_of_another_program_is_never_overwritten(tmp_path: Path, host: Host) -> None:
    theirs = tmp_path / "nvidia.json"
    theirs.write_text(json.dumps(driver.find(host.root).cdi()))
    with fakes.node(tmp_path, config=Config(cdi=theirs)) as node:
        node.node.driver = replace(
            node.node.loaded(), files=driver_loader.load_driver_files(node.node.config)
        )
        node.node.fingerprint = driver_loader.driver_fingerprint(
            node.node.driver.files, simulated=False
        )
        before = theirs.read_bytes()
        install(host, NEWER)
        with pytest.raises(NoDriver, match=f"nvidia-ctk cdi generate --output={theirs}"):
            create(node, tmp_path / "b")
        assert theirs.read_bytes() == before


def test_without_a_configured_spec_the_daemon_makes_its_own(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cdi_files, "_DRIVERS", (f"{tmp_path}/cdi/*.yaml",))
    config = Config(state_dir=tmp_path / "state")
    assert driver_loader.load_driver_files(config).cuda.host_path.endswith(host.version)
    assert (tmp_path / "state/driver.json").is_file()
    # At the next start the majors may be others.
    host.write("proc/devices", "Character devices:\n195 nvidia\n240 nvidia-uvm\n")
    driver_loader.load_driver_files(config)
    assert '"major": 240' in (tmp_path / "state/driver.json").read_text()


def test_the_driver_is_mounted_even_if_the_spec_cannot_be_kept(
    tmp_path: Path, host: Host, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").write_text("no folder")
    config = Config(state_dir=tmp_path / "state", cdi=tmp_path / "state/driver.json")
    assert driver_loader.load_driver_files(config).cuda.host_path.endswith(host.version)
    assert "driver-cdi-spec-write-failed" in capfd.readouterr().err


def nodes(*entries: tuple[str, int, int]) -> DriverFiles:
    keys = ("path", "type", "major", "minor")
    devices = [dict(zip(keys, (path, "c", *rest), strict=True)) for path, *rest in entries]
    mounts = [
        {"hostPath": f"/x/{name}", "containerPath": f"/x/{name}"}
        for name in ("libcuda.so.1", "libnvidia-ml.so.1")
    ]
    document = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": "0", "containerEdits": {}}],
        "containerEdits": {"deviceNodes": devices, "mounts": mounts},
    }
    return from_cdi(cdi.from_document(document))


def test_nodes_have_links_by_their_numbers(tmp_path: Path) -> None:
    """systemd looks there when it writes a container's device rules anew."""
    folder = tmp_path / "char"
    files = nodes(("/dev/null", 1, 3), ("/dev/zero", 1, 5), ("/dev/nvidia99", 195, 99))
    assert driver_loader.link_devices(files, folder) == ["1:3", "1:5"]
    assert (folder / "1:3").stat().st_rdev == os.makedev(1, 3)
    assert not (folder / "195:99").is_symlink()
    assert driver_loader.link_devices(files, folder) == []
    assert driver_loader.link_devices(nodes(("/dev/null", 1, 4)), tmp_path) == []  # it is 1:3
