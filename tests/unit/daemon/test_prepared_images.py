# SPDX-License-Identifier: Apache-2.0
"""A second container of an image gets the same edits, without the questions to its image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.daemon.lifecycle import container_edits
from gpushare.oci import image_view
from gpushare.oci.cdi import CdiDeviceNode
from gpushare.oci.container import ContainerEdits
from gpushare.oci.image_view import ImageView, PreparedImage, Seen

from . import fakes
from .bundles import BundleToCreate
from .fakes import FakeDaemon

LIBRARIES = "rootfs/usr/lib/x86_64-linux-gnu"
ASKED = "GPUSHARE_MEMORY=4GiB"


class ImageNode:
    """A node, and the containers of an image that are created on it."""

    def __init__(self, folder: Path, node: FakeDaemon) -> None:
        self.folder, self.node = folder, node
        self.looked: list[str] = []  # containers whose images were looked at

    def made(self, identity: str, *env: str, **changes: Any) -> BundleToCreate:
        container = BundleToCreate(
            self.folder / identity, ASKED, *env, identity=identity, **changes
        )
        (container.folder / LIBRARIES).mkdir(parents=True)
        (container.folder / LIBRARIES / "libc.so.6").write_text("libc")
        (container.folder / "rootfs/usr/lib64/ld-linux-x86-64.so.2").write_text("the loader")
        return container

    def create(self, identity: str, *env: str, **changes: Any) -> None:
        self.made(identity, *env, **changes).create(self.node)


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageNode]:
    choose = container_edits.choose_files
    with fakes.node(tmp_path / "node") as node:
        found = ImageNode(tmp_path, node)

        def noted(*words: Any) -> container_edits.DriverFileChoice:
            found.looked.append(words[2].id)
            return choose(*words)

        monkeypatch.setattr(container_edits, "choose_files", noted)
        yield found


def tree(container: BundleToCreate) -> list[tuple[str, str]]:
    root = container.folder / "rootfs"
    return sorted(
        (str(path.relative_to(root)), str(path.readlink()) if path.is_symlink() else "")
        for path in root.rglob("*")
    )


def test_two_containers_of_an_image_get_the_same_edits(image: ImageNode) -> None:
    first, second = image.made("first"), image.made("second", "HOSTNAME=second")
    key, other = first.create(image.node)["key"], second.create(image.node)["key"]
    assert key != other
    mounts, others = first.document()["mounts"], second.document()["mounts"]
    assert others == [{**mount, "source": mount["source"].replace(key, other)} for mount in mounts]
    assert [hook["args"][-1] for hook in second.document()["hooks"]["createRuntime"]][1:] == [other]
    assert tree(first) == tree(second)
    assert image.looked == ["first"]


@pytest.mark.parametrize(
    ("env", "changes"),
    [
        (("NVIDIA_DRIVER_CAPABILITIES=all",), {}),
        ((), {"mounts": [{"destination": "/data", "type": "bind", "options": ["rbind"]}]}),
        ((), {"process": {"args": ["other"], "env": [ASKED], "cwd": "/"}}),
    ],
)
def test_a_container_that_asks_for_more_is_looked_at(
    image: ImageNode, env: tuple[str, ...], changes: dict[str, Any]
) -> None:
    image.create("first")
    image.create("second", *env, **changes)
    assert image.looked == ["first", "second"]


def test_an_image_with_a_driver_of_its_own_is_looked_at(image: ImageNode) -> None:
    image.create("first")
    second = image.made("second")
    (second.folder / LIBRARIES / "libcuda.so.535.1").write_text("the image's")
    second.create(image.node)
    assert image.looked == ["first", "second"]
    covered = [mount["destination"] for mount in second.document()["mounts"]]
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.535.1" in covered


def test_a_link_that_appears_meanwhile_is_seen(
    image: ImageNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the comparison and the mount points, another process may write to the root."""
    image.create("first")
    second = image.made("second")
    create = ImageView.create

    def raced(view: ImageView, created: Any) -> None:
        (second.folder / LIBRARIES / "libcuda.so.1").symlink_to("/elsewhere")
        create(view, created)

    monkeypatch.setattr(ImageView, "create", raced)
    second.create(image.node)
    assert image.looked == ["first", "second"]


def test_all_is_forgotten_under_another_configuration_or_driver(image: ImageNode) -> None:
    image.create("a")
    image.node.node.config = replace(image.node.node.config)
    image.create("b")
    driver = image.node.node.loaded()
    image.node.node.driver = replace(driver, files=replace(driver.files))
    image.create("c")
    image.create("d")
    assert image.looked == ["a", "b", "c"]


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


def test_no_environment_is_kept(image: ImageNode) -> None:
    secret = "hunter2" * 1000
    image.create("first", f"PASSWORD={secret}")
    [(request, prepared)] = image.node.prepared_images._entries.items()
    assert "hunter2" not in f"{request}{prepared}"


def test_so_many_are_kept(image: ImageNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_view, "_MOST", 2)
    for number, memory in enumerate(("1", "2", "3", "1")):
        env = f"PATH=/{memory}"
        image.create(f"c{number}", env)
    assert image.looked == ["c0", "c1", "c2", "c3"]
