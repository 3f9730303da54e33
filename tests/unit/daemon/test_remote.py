# SPDX-License-Identifier: Apache-2.0
"""A container on a node without cards uses a remote GPU through an engine of the operator's."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.daemon.identity import processes
from gpushare.daemon.identity.processes import Cgroups
from gpushare.daemon.lifecycle import release
from gpushare.daemon.node import NoDriver
from gpushare.daemon.operator.reload import reload_config
from gpushare.quota.errors import QuotaError

from . import fakes
from .bundles import BundleToCreate
from .fakes import FakeDaemon
from .operations import opened
from .test_mps_placement import configured

REMOTE = "GPUSHARE_REMOTE=lab"
CUDA, NVML, NEEDED = "libcuda.so.1", "libnvidia-ml.so.1", "libnghttp2.so.14"
VERSION = hashlib.sha256(CUDA.encode()).hexdigest()[:12]


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    folder = tmp_path / "engine"
    folder.mkdir(mode=0o755)
    for name in (CUDA, NVML, NEEDED):
        (folder / name).write_text(name)
    return folder


@pytest.fixture
def node(tmp_path: Path, engine: Path) -> Iterator[FakeDaemon]:
    variables = {"ENGINE_SERVER": "{server}", "ENGINE_SESSION": "{session}"}
    lupine = {"libraries": str(engine), "version": VERSION, "environment": variables}
    lab = {"address": "10.0.0.5:14833", "engine": "lupine"}
    remote = {"engines": {"lupine": lupine}, "servers": {"lab": lab}}
    config = configured(f"remote: {json.dumps(remote)}", tmp_path)
    with fakes.node(tmp_path, config=config) as made:
        reload_config(made)
        made.node.driver, made.node.no_driver_reason = None, "no driver: there is none"
        yield made


def mounted(container: BundleToCreate) -> dict[str, str]:
    return {entry["destination"]: entry["source"] for entry in container.document()["mounts"]}


def variables(container: BundleToCreate) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in container.document()["process"]["env"])


def test_the_engine_takes_the_drivers_names(node: FakeDaemon, tmp_path: Path, engine: Path) -> None:
    container = BundleToCreate(tmp_path / "b", REMOTE, "LD_LIBRARY_PATH=/opt/own")
    root = container.folder / "rootfs"
    (root / "opt/own").mkdir(parents=True)
    (root / "opt/own" / CUDA).write_text("the image's own")
    assert container.create(node)["mode"] == "remote"
    mounts, document = mounted(container), container.document()
    assert mounts[f"/opt/own/{CUDA}"] == str(engine / CUDA)
    names = {Path(path).name for path in mounts if mounts[path] == str(engine / NVML)}
    assert NVML in names
    assert str(engine / NEEDED) in mounts.values()
    assert "devices" not in document["linux"]
    assert variables(container)["ENGINE_SERVER"] == "10.0.0.5:14833"
    session = variables(container)["ENGINE_SESSION"]
    # A start later, the image still lacks what the first one has made mount points for.
    container.create(node)
    assert mounted(container) == mounts
    assert variables(container)["ENGINE_SESSION"] != session


def test_a_library_of_the_image_is_not_replaced(
    node: FakeDaemon, tmp_path: Path, engine: Path
) -> None:
    container = BundleToCreate(tmp_path / "b", REMOTE)
    (container.folder / "rootfs/usr/lib64" / NEEDED).write_text("the image's own")
    container.create(node)
    assert str(engine / NEEDED) not in mounted(container).values()


@pytest.mark.parametrize("binds", [True, False])  # False: `runc run`, or bind: hook
def test_the_tenant_is_listed_until_its_container_ends(
    node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, binds: bool
) -> None:
    linux = {"cgroupsPath": "/machine/4f1c"}
    container = BundleToCreate(tmp_path / "b", REMOTE, linux=linux)
    container.create(node, maker=os.getpid(), binds=binds)
    monkeypatch.setattr(processes, "start_time", lambda _: None)  # its runtime has made it
    with monkeypatch.context() as patch:
        patch.setattr(Cgroups, "is_populated", lambda *_: True)
        release.reconcile_tenants(node, node.freezer)
        row = node.ask("tenants", everything=False)[0]
    assert (row["state"], row["isolation"], row["cards"]) == ("none", "remote", [])
    assert row["reason"] == "remote server lab (10.0.0.5:14833)"
    assert row["created"] > 0
    assert node.ask("tenants", everything=False) == {}
    release.reconcile_tenants(node, node.freezer)
    assert not node.ledger.entries


@pytest.mark.parametrize(
    ("env", "refusal"),
    [
        ("GPUSHARE_REMOTE=lap", "lap: no server in remote.servers of gpushare.yaml. The servers"),
        ("GPUSHARE_MEMORY=4GiB", "MEMORY=4GiB: conflicts with env GPUSHARE_REMOTE: the quota of a"),
        ("GPUSHARE_CORES=30", "set it for the server there"),
        ("ORION_GMEM=4096", "conflicts with env GPUSHARE_REMOTE"),
    ],
)
def test_what_a_remote_gpu_cannot_be_is_refused_by_name(
    node: FakeDaemon, tmp_path: Path, env: str, refusal: str
) -> None:
    container = BundleToCreate(tmp_path / "b", *dict.fromkeys((REMOTE, env)))
    before = container.text()
    with pytest.raises(QuotaError) as caught:
        container.create(node)
    assert refusal in str(caught.value)
    assert container.text() == before
    assert not node.ledger.entries


def test_others_on_the_node_are_as_before(node: FakeDaemon, tmp_path: Path) -> None:
    assert BundleToCreate(tmp_path / "a").create(node, "weak")["mode"] == "none"
    with pytest.raises(NoDriver):
        BundleToCreate(tmp_path / "b", "GPUSHARE_MEMORY=4GiB").create(node)
    with pytest.raises(QuotaError, match="--remote=lab: not for gpushare run"):
        opened(node, remote="lab")


def _another_build(folder: Path) -> None:
    (folder / CUDA).write_text("another build")


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (lambda folder: (folder / CUDA).unlink(), f"has no {CUDA}"),
        (_another_build, "is another version: its SHA-256 is"),
        (lambda folder: (folder / NVML).chmod(0o666), f"{NVML} can be written by others than root"),
        (lambda folder: folder.parent.chmod(0o777), "can be written by others than root"),
    ],
)
def test_an_engine_that_is_not_what_the_operator_installed_is_refused(
    node: FakeDaemon, tmp_path: Path, engine: Path, change: Any, refusal: str
) -> None:
    container = BundleToCreate(tmp_path / "b", REMOTE)
    change(engine)
    reload_config(node)
    with pytest.raises(QuotaError) as caught:
        container.create(node)
    assert "GPUSHARE_REMOTE=lab: the engine lupine of this server cannot be used" in str(
        caught.value
    )
    assert refusal in str(caught.value)


def test_a_library_that_has_changed_is_not_mounted_unread(
    node: FakeDaemon, tmp_path: Path, engine: Path
) -> None:
    _another_build(engine)
    with pytest.raises(QuotaError, match="has changed since gpushared read it"):
        BundleToCreate(tmp_path / "b", REMOTE).create(node)


def test_cross_node_of_orionx_means_the_only_server(node: FakeDaemon, tmp_path: Path) -> None:
    env = ("ORION_CROSS_NODE=1", "ORION_VGPU=1")
    assert BundleToCreate(tmp_path / "b", *env).create(node)["mode"] == "remote"
    remote = node.node.config.remote
    both = {**remote.servers, "attic": remote.servers["lab"]}
    node.node.config = replace(node.node.config, remote=replace(remote, servers=both))
    with pytest.raises(NoDriver):
        BundleToCreate(tmp_path / "d", *env).create(node)
