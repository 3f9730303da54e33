# SPDX-License-Identifier: Apache-2.0
"""A second container of an image gets the same edits, without the questions to its image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.daemon.lifecycle import driver_files
from gpushare.daemon.state import DaemonState
from gpushare.oci import prepared_image
from gpushare.oci.cdi import CdiDeviceNode
from gpushare.oci.container import ContainerEdits
from gpushare.oci.image_view import ImageView, Seen
from gpushare.oci.prepared_image import PreparedImage

from . import fakes
from .bundles import BundleToCreate

LIBRARIES = "rootfs/usr/lib/x86_64-linux-gnu"
ASKED = "GPUSHARE_MEMORY=4GiB"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DaemonState]:
    with fakes.node(tmp_path / "node") as made:
        yield made


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the tenants whose images were looked at."""
    found: list[str] = []
    choose = driver_files.choose_files

    def noted(*words: Any) -> driver_files.DriverFileChoice:
        found.append(words[2].id)
        return choose(*words)

    monkeypatch.setattr(driver_files, "choose_files", noted)
    return found


def made(folder: Path, identity: str, *env: str, **changes: Any) -> BundleToCreate:
    container = BundleToCreate(folder / identity, ASKED, *env, identity=identity, **changes)
    (container.folder / LIBRARIES).mkdir(parents=True)
    (container.folder / LIBRARIES / "libc.so.6").write_text("libc")
    (container.folder / "rootfs/usr/lib64/ld-linux-x86-64.so.2").write_text("the loader")
    return container


def tree(container: BundleToCreate) -> list[tuple[str, str]]:
    root = container.folder / "rootfs"
    return sorted(
        (str(path.relative_to(root)), str(path.readlink()) if path.is_symlink() else "")
        for path in root.rglob("*")
    )


def test_two_containers_of_an_image_get_the_same_edits(
    node: DaemonState, tmp_path: Path, looks: list[str]
) -> None:
    first, second = made(tmp_path, "first"), made(tmp_path, "second", "HOSTNAME=second")
    key, other = first.create(node)["key"], second.create(node)["key"]
    assert key != other
    mounts, others = first.document()["mounts"], second.document()["mounts"]
    assert others == [{**mount, "source": mount["source"].replace(key, other)} for mount in mounts]
    assert [hook["args"][-1] for hook in second.document()["hooks"]["createRuntime"]][1:] == [other]
    assert tree(first) == tree(second)
    assert looks == ["first"]


@pytest.mark.parametrize(
    ("env", "changes"),
    [
        (("NVIDIA_DRIVER_CAPABILITIES=all",), {}),
        ((), {"mounts": [{"destination": "/data", "type": "bind", "options": ["rbind"]}]}),
        ((), {"process": {"args": ["other"], "env": [ASKED], "cwd": "/"}}),
    ],
)
def test_a_container_that_asks_for_more_is_looked_at(
    node: DaemonState,
    tmp_path: Path,
    looks: list[str],
    env: tuple[str, ...],
    changes: dict[str, Any],
) -> None:
    made(tmp_path, "first").create(node)
    made(tmp_path, "second", *env, **changes).create(node)
    assert looks == ["first", "second"]


def test_an_image_with_a_driver_of_its_own_is_looked_at(
    node: DaemonState, tmp_path: Path, looks: list[str]
) -> None:
    made(tmp_path, "first").create(node)
    second = made(tmp_path, "second")
    (second.folder / LIBRARIES / "libcuda.so.535.1").write_text("the image's")
    second.create(node)
    assert looks == ["first", "second"]
    covered = [mount["destination"] for mount in second.document()["mounts"]]
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.535.1" in covered


def test_a_link_that_appears_meanwhile_is_seen(
    node: DaemonState, tmp_path: Path, looks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the comparison and the mount points, another process may write to the root."""
    made(tmp_path, "first").create(node)
    second = made(tmp_path, "second")
    create = ImageView.create

    def raced(view: ImageView, created: Any) -> None:
        (second.folder / LIBRARIES / "libcuda.so.1").symlink_to("/elsewhere")
        create(view, created)

    monkeypatch.setattr(ImageView, "create", raced)
    second.create(node)
    assert looks == ["first", "second"]


def test_all_is_forgotten_under_another_configuration_or_driver(
    node: DaemonState, tmp_path: Path, looks: list[str]
) -> None:
    made(tmp_path, "a").create(node)
    node.config = replace(node.config)
    made(tmp_path, "b").create(node)
    assert node.driver is not None
    node.driver = replace(node.driver, files=replace(node.driver.files))
    made(tmp_path, "c").create(node)
    made(tmp_path, "d").create(node)
    assert looks == ["a", "b", "c"]


def test_the_numbers_of_devices_are_read_for_each_container(tmp_path: Path) -> None:
    """The driver's modules are loaded again, and a device has another number."""
    device = tmp_path / "nvidia-uvm"
    device.symlink_to("/dev/null")
    prepared = PreparedImage(
        seen=Seen((), ()),
        created=(),
        wanted=ContainerEdits(nodes=(CdiDeviceNode("/dev/nvidia-uvm", str(device)),)),
        cache=None,
        tenant_directory="/run/first",
    )
    numbers = []
    for name in ("null", "zero"):
        device.unlink()
        device.symlink_to(f"/dev/{name}")
        [found] = prepared.edits_of("/run/second", ()).devices
        numbers.append((found.major, found.minor))
    assert numbers == [(1, 3), (1, 5)]


def test_no_environment_is_kept(node: DaemonState, tmp_path: Path) -> None:
    secret = "hunter2" * 1000
    made(tmp_path, "first", f"PASSWORD={secret}").create(node)
    [(request, prepared)] = node.prepared_images._entries.items()
    assert "hunter2" not in f"{request}{prepared}"


def test_so_many_are_kept(
    node: DaemonState, tmp_path: Path, looks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared_image, "_MOST", 2)
    for number, memory in enumerate(("1", "2", "3", "1")):
        env = f"PATH=/{memory}"
        made(tmp_path, f"c{number}", env).create(node)
    assert looks == ["c0", "c1", "c2", "c3"]
