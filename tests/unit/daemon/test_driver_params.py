# SPDX-License-Identifier: Apache-2.0
"""Which containers are to have NVIDIA's params file covered, and with what."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.daemon.pages.driver_params import may_make_nodes
from gpushare.oci.spec import Spec

from . import fakes
from .bundles import BundleToCreate
from .fakes import FakeDaemon

HOSTS = "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileMode: 432\n"
PROC = {"destination": "/proc", "type": "proc", "source": "proc"}


def sections(
    *capabilities: str,
    namespaces: Any = ({"type": "mount"}, {"type": "pid"}),
    mounts: Any = (PROC,),
    allows: bool = False,
    **linux: Any,
) -> dict[str, Any]:
    """Return the sections of a spec that has what the file is covered for, with these changes."""
    rules = [{"allow": allows, "access": "rwm"}]
    return {
        "process": {"args": ["sh"], "cwd": "/", "capabilities": {"bounding": [*capabilities]}},
        "mounts": [*mounts],
        "linux": {
            "namespaces": [*namespaces],
            "maskedPaths": ["/proc/kcore"],
            "resources": {"devices": rules},
            **linux,
        },
    }


MKNOD = "CAP_MKNOD"


@pytest.mark.parametrize("capability", [MKNOD, "cap_mknod"])
def test_a_container_that_may_make_nodes_is_to_have_it(capability: str) -> None:
    assert may_make_nodes(Spec(sections(capability)))


@pytest.mark.parametrize(
    "without",
    [
        sections("CAP_CHOWN"),
        sections(MKNOD, "CAP_SYS_ADMIN"),
        sections(MKNOD, allows=True),
        sections(MKNOD, namespaces=[{"type": "mount"}, {"type": "user"}]),
        sections(
            MKNOD, namespaces=[{"type": "mount"}, {"type": "user", "path": "/proc/7/ns/user"}]
        ),
        sections(MKNOD, namespaces=[{"type": "mount", "path": "/proc/1/ns/mnt"}]),
        sections(MKNOD, namespaces=[{"type": "pid"}]),
        sections(MKNOD, maskedPaths=[]),
        sections(MKNOD, maskedPaths=None),
        sections(MKNOD, mounts=[]),
        sections(MKNOD, mounts=[{**PROC, "type": "bind", "source": "/proc"}]),
        sections(MKNOD, mounts=[PROC, {**PROC, "type": "bind", "source": "/proc"}]),
        sections(MKNOD, mountLabel="system_u:object_r:container_file_t:s0:c1,c2"),
    ],
)
def test_any_other_container_is_left_as_it_is(without: dict[str, Any]) -> None:
    assert not may_make_nodes(Spec(without))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    ("text", "copy"),
    [
        (HOSTS, "DeviceFileUID: 0\nDeviceFileMode: 432\nModifyDeviceFiles: 0\n"),
        ("NoSuchSetting: 1", "NoSuchSetting: 1\nModifyDeviceFiles: 0\n"),
        ("ModifyDeviceFiles: 0\n", None),
        (None, None),
    ],
)
def test_the_copy_says_what_the_hosts_file_does_not(
    node: FakeDaemon, tmp_path: Path, text: str | None, copy: str | None
) -> None:
    place = node.node.config.run_dir / "driver-params"
    if text is not None:
        (tmp_path / "params").write_text(text)
    node.params.prepare()
    assert (place.read_text() if place.exists() else None) == copy
    if copy:
        assert place.stat().st_mode & 0o7777 == 0o444


def test_a_create_answers_what_its_launcher_is_to_cover(node: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "params").write_text(HOSTS)
    before = create(node, tmp_path / "before", sections(MKNOD))
    node.params.prepare()
    after = create(node, tmp_path / "after", sections(MKNOD))
    plain = create(node, tmp_path / "plain", sections())
    assert [answer.get("covers") for answer in (before, after, plain)] == [
        None,
        str(tmp_path / "params"),
        None,
    ]
    assert Path(after["copy"]).read_text().endswith("ModifyDeviceFiles: 0\n")


def create(node: FakeDaemon, folder: Path, spec: dict[str, Any]) -> Any:
    """Return the answer to the create of a share, by a launcher that binds it."""
    process = {**spec["process"], "env": ["GPUSHARE_MEMORY=1GiB"]}
    linux = {**spec["linux"], "cgroupsPath": f"/{folder.name}"}
    whole = {**spec, "process": process, "linux": linux}
    return BundleToCreate(folder, identity=folder.name, **whole).create(
        node, maker=os.getpid(), binds=True
    )
