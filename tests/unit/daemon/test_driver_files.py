# SPDX-License-Identifier: Apache-2.0
"""Which parts of the driver a container gets, of which image, and whose params are covered."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.config import Config
from gpushare.daemon.lifecycle import container_edits, create, release
from gpushare.daemon.lifecycle.container_edits import IncompatibleImage
from gpushare.daemon.lifecycle.driver_loader import link_devices
from gpushare.daemon.limits import effective_isolation
from gpushare.daemon.pages.driver_params import may_make_nodes
from gpushare.daemon.store.ledger import ReservationLost
from gpushare.daemon.store.record import TenantRecord
from gpushare.oci import cdi, driver_files, image_view
from gpushare.oci.container import IN_CONTAINER, ON_HOST
from gpushare.oci.image_view import ImageView
from gpushare.oci.spec import Spec
from gpushare.quota.request_policy import RequestPolicy
from tests.unit.host import elf
from tests.unit.oci.examples import cdi_document

from . import fakes
from .bundles import BundleToCreate
from .fakes import FakeDaemon, FakeDriver

SHARE = "GPUSHARE_MEMORY=4GiB"


NEWER = "590.10.01"


def given(container: BundleToCreate, node: FakeDaemon) -> TenantRecord:
    key = container.create(node)["key"]
    return node.ledger.entries[key]


def mounts(container: BundleToCreate) -> dict[str, str]:
    return {mount["destination"]: mount["source"] for mount in container.document()["mounts"]}


def with_compat(container: BundleToCreate, version: str = NEWER) -> None:
    folder = container.folder / "rootfs/usr/local/cuda/compat"
    folder.mkdir(parents=True)
    (folder / f"libcuda.so.{version}").write_bytes(elf.library("libcuda.so.1"))


def test_driver_limits_cover_memory_that_bypasses_the_interposer(tmp_path: Path) -> None:
    with fakes.node(tmp_path, config=Config(allow_uninterposed=True)) as node:
        container = BundleToCreate(tmp_path / "b", SHARE, "NVIDIA_DRIVER_CAPABILITIES=video")
        entry = given(container, node)
        # Without a driver that has limits, or where it refuses, it is the audit's again.
        assert node.limits.set_in_driver(entry) == "audited"
        assert effective_isolation(replace(entry, isolation="driver")) == "audited"


@pytest.mark.parametrize("version", [NEWER, "550.54.15", FakeDriver.driver_version])
def test_a_newer_compat_is_the_containers_driver_and_any_other_is_covered(
    version: str, node: FakeDaemon, tmp_path: Path
) -> None:
    container = BundleToCreate(tmp_path / "b", SHARE)
    with_compat(container, version)
    entry, found = given(container, node), mounts(container)
    copies = node.node.config.state_dir / "compat"
    if version == NEWER:
        source = found["/.gpushare/driver/libcuda.so.1"]
        assert source == f"{copies}/{entry.compat}/libcuda.so.{NEWER}"
        assert Path(source).read_bytes() == elf.library("libcuda.so.1")
        assert entry.notes[0].startswith(f"cuda-compat {NEWER} of the image is newer than")
    else:
        filtered = str(node.node.libraries / "libcuda.so.1")
        assert found[f"/usr/local/cuda/compat/libcuda.so.{version}"] == filtered
        assert (entry.notes, copies.exists()) == ((), False)


def test_a_container_in_the_host_s_root_gets_the_host_s_library(
    node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageView, "is_hosts", lambda _: True)
    container = BundleToCreate(tmp_path / "b", SHARE)
    given(container, node)
    found = mounts(container)
    ours = {path: source for path, source in found.items() if source.endswith("/libcuda.so.1")}
    assert str(node.node.host_libraries / "libcuda.so.1") in ours.values()
    assert str(node.node.libraries / "libcuda.so.1") not in ours.values()
    assert not [path for path in found if path.startswith(IN_CONTAINER.top)]
    assert f"{ON_HOST.tenant}/status" in found


def test_a_card_that_no_compat_is_made_for_keeps_the_hosts_driver(tmp_path: Path) -> None:
    card = fakes.card(model="GeForce RTX 4090", datacenter=False)
    with fakes.node(tmp_path, FakeDriver(card)) as node:
        container = BundleToCreate(tmp_path / "b", SHARE)
        with_compat(container)
        [note] = given(container, node).notes
        assert "is not used: it requires data center cards, and GeForce RTX 4090 is not one" in note
        real = mounts(container)["/.gpushare/driver/libcuda.so.1"]
        assert real == f"{tmp_path}/libcuda.so.1"


def test_a_compat_that_cannot_be_copied_leaves_the_hosts_driver(
    node: FakeDaemon, tmp_path: Path
) -> None:
    container = BundleToCreate(tmp_path / "b", SHARE)
    with_compat(container)
    library = container.folder / f"rootfs/usr/local/cuda/compat/libcuda.so.{NEWER}"
    library.unlink()
    os.mkfifo(library)
    [note] = given(container, node).notes
    assert "is not used: it has /usr/local/cuda/compat/libcuda.so" in note
    assert "no regular file" in note


def test_an_unused_copy_is_removed_after_a_day(node: FakeDaemon, tmp_path: Path) -> None:
    container = BundleToCreate(tmp_path / "b", SHARE)
    with_compat(container)
    entry = given(container, node)
    folder = node.node.config.state_dir / "compat" / entry.compat
    old = time.time() - 2 * 24 * 3600
    os.utime(folder, (old, old))
    container_edits.sweep_compat(node.node, node.ledger)
    assert folder.is_dir()
    release.release_tenant(entry.key, node, "it ended")
    release.reconcile_tenants(node, node.freezer)
    node.names.run(lambda: None)
    assert not folder.exists()


V100 = replace(fakes.card(0, 32, "V100"), brand="tesla", capability=(7, 0))


def test_an_image_that_does_not_fit_its_card_is_noted_or_refused(tmp_path: Path) -> None:
    need = "CUDA_VERSION=13.0.0"
    cards = FakeDriver(replace(fakes.card(1), brand="nvidia", capability=(9, 0)), V100)
    with fakes.node(tmp_path, cards) as node:
        [note] = given(BundleToCreate(tmp_path / "b", SHARE, need), node).notes
        assert "(card-dropped)" in note
    with fakes.node(tmp_path / "2", cards, Config(terms=RequestPolicy(compat="refuse"))) as node:
        with pytest.raises(IncompatibleImage, match="V100 has compute"):
            BundleToCreate(tmp_path / "c", SHARE, need).create(node)
        newer = "GPUSHARE_COMPUTE_CAPABILITY=>=8.0"
        assert given(BundleToCreate(tmp_path / "d", SHARE, need, newer), node).notes == ()


def test_what_cannot_work_in_an_image_is_noted(node: FakeDaemon, tmp_path: Path) -> None:
    container = BundleToCreate(tmp_path / "b", SHARE, "NVIDIA_DRIVER_CAPABILITIES=compute,magic")
    (container.folder / "rootfs/bin").mkdir()
    (container.folder / "rootfs/bin/sh").write_bytes(elf.library_of_32_bit())
    capability, program = given(container, node).notes
    assert capability.startswith("NVIDIA_DRIVER_CAPABILITIES: no such capability: magic (there are")
    assert program.startswith("/bin/sh is built for another architecture or for 32 bits")


def test_the_hosts_user_of_a_container_is_what_its_namespace_maps() -> None:
    maps = [{"containerID": 0, "hostID": 5000, "size": 10}, {"containerID": 100, "hostID": 7000}]
    for uid, expected in ((0, 5000), (9, 5009), (10, 10)):
        spec = Spec({"process": {"user": {"uid": uid}}, "linux": {"uidMappings": maps}})
        assert container_edits.host_uid(spec) == expected


LIBRARIES = "rootfs/usr/lib/x86_64-linux-gnu"


class ImageNode:
    """A node, and the containers of an image that are created on it."""

    def __init__(self, folder: Path, node: FakeDaemon) -> None:
        self.folder, self.node = folder, node
        self.looked: list[str] = []  # containers whose images were looked at

    def made(self, identity: str, *env: str, **changes: Any) -> BundleToCreate:
        container = BundleToCreate(
            self.folder / identity, SHARE, *env, identity=identity, **changes
        )
        (container.folder / LIBRARIES).mkdir(parents=True)
        (container.folder / LIBRARIES / "libc.so.6").write_text("libc")
        (container.folder / "rootfs/usr/lib64/ld-linux-x86-64.so.2").write_text("the loader")
        return container

    def create(self, identity: str, *env: str, **changes: Any) -> None:
        self.made(identity, *env, **changes).create(self.node)


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageNode]:
    choose = container_edits.ContainerEditor.choose_files
    with fakes.node(tmp_path / "node") as node:
        found = ImageNode(tmp_path, node)

        def noted(*words: Any) -> container_edits.DriverFileChoice:
            found.looked.append(words[0]._record.id)
            return choose(*words)

        monkeypatch.setattr(container_edits.ContainerEditor, "choose_files", noted)
        yield found


def test_two_containers_of_an_image_get_the_same_edits(image: ImageNode) -> None:
    first, second = image.made("first"), image.made("second", "HOSTNAME=second")
    key, other = first.create(image.node)["key"], second.create(image.node)["key"]
    assert key != other
    mounts, others = first.document()["mounts"], second.document()["mounts"]
    assert others == [{**mount, "source": mount["source"].replace(key, other)} for mount in mounts]
    assert [hook["args"][-1] for hook in second.document()["hooks"]["createRuntime"]][1:] == [other]
    assert image.looked == ["first"]


@pytest.mark.parametrize(
    ("env", "changes"),
    [
        (("NVIDIA_DRIVER_CAPABILITIES=all",), {}),
        ((), {"mounts": [{"destination": "/data", "type": "bind", "options": ["rbind"]}]}),
        ((), {"process": {"args": ["other"], "env": [SHARE], "cwd": "/"}}),
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


def test_all_is_forgotten_under_another_configuration_or_driver(image: ImageNode) -> None:
    image.create("a")
    image.node.node.config = replace(image.node.node.config)
    image.create("b")
    driver = image.node.node.loaded()
    image.node.node.driver = replace(driver, files=replace(driver.files))
    image.create("c")
    image.create("d")
    assert image.looked == ["a", "b", "c"]


def test_so_many_are_kept(image: ImageNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_view, "_MOST", 2)
    for number, memory in enumerate(("1", "2", "3", "1")):
        env = f"PATH=/{memory}"
        image.create(f"c{number}", env)
    assert image.looked == ["c0", "c1", "c2", "c3"]


def test_a_reservation_that_is_lost_meanwhile_leaves_the_bundle_as_it_was(
    node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = BundleToCreate(tmp_path / "b", SHARE)
    before = container.text()
    choose = container_edits.ContainerEditor.choose_files

    def expire(*arguments: Any) -> Any:
        node.decide.run(
            lambda: release.release_tenant(arguments[0]._record.key, node, "it expired")
        )
        return choose(*arguments)

    monkeypatch.setattr(container_edits.ContainerEditor, "choose_files", expire)
    with pytest.raises(ReservationLost, match="was released while"):
        container.create(node)
    assert container.text() == before
    assert not node.ledger.entries


def test_a_container_whose_earlier_create_hangs_is_refused_in_time(
    node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = BundleToCreate(tmp_path / "b", SHARE)

    def hang(*_: Any) -> Any:
        with pytest.raises(create.CreateAbandoned):
            container.create(node, is_abandoned=lambda: True)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(container_edits.ContainerEditor, "choose_files", hang)
    with pytest.raises(OSError, match="Input/output"):
        container.create(node)


TREE = Path("/run/tree-1")
PROCESS = {"args": ["sh"], "env": ["PATH=/bin", SHARE], "cwd": "/"}


@pytest.fixture
def trees(node: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each library tree is there, by gpushared's own account."""
    monkeypatch.setattr(node.mounts, "library_tree", lambda *_: TREE)


def top_mount(folder: Path, node: FakeDaemon, **changes: Any) -> tuple[str, str]:
    """Create a container of one and the same image; return what is mounted at our folder."""
    container = BundleToCreate(folder, SHARE, identity=folder.name, **changes)
    (container.folder / "rootfs/usr/lib64/libc.so.6").write_text("libc")
    container.create(node)
    mounts = {mount["destination"]: mount for mount in container.document()["mounts"]}
    return mounts[IN_CONTAINER.top]["type"], mounts[IN_CONTAINER.top]["source"]


@pytest.mark.parametrize(
    "changes",
    [
        {"linux": {"mountLabel": "system_u:object_r:container_file_t:s0"}},
        {"linux": {"namespaces": [{"type": "mount"}, {"type": "user"}]}},
        {"process": {**PROCESS, "capabilities": {"bounding": ["CAP_KILL", "CAP_SYS_ADMIN"]}}},
        {"process": {**PROCESS, "capabilities": {"ambient": ["cap_sys_admin"]}}},
        {},
    ],
    ids=["SELinux label", "user namespace", "may mount", "ambient", "no tree"],
)
@pytest.mark.usefixtures("trees")
def test_a_container_that_cannot_have_it_gets_single_mounts(
    node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    assert top_mount(tmp_path / "first", node) == ("bind", str(TREE))
    with monkeypatch.context() as patched:
        if not changes:
            patched.setattr(node.mounts, "library_tree", fakes.no_space)
        assert top_mount(tmp_path / "second", node, **changes)[0] == "tmpfs"
    assert top_mount(tmp_path / "third", node) == ("bind", str(TREE))


def test_a_node_of_the_driver_gets_the_link_by_which_systemd_finds_it(tmp_path: Path) -> None:
    nodes = [{"path": "/dev/null"}, {"path": "/dev/zero", "major": 9, "minor": 9}]
    document = {**cdi_document(), "devices": [{"name": "0", "containerEdits": {}}]}
    document["containerEdits"]["deviceNodes"] = [*nodes, {"path": "/dev/not-there"}]
    files, folder = driver_files.from_cdi(cdi.from_document(document)), tmp_path / "char"
    [name] = link_devices(files, folder)
    assert (folder / name).samefile("/dev/null")
    assert [path.name for path in folder.iterdir()] == [name]
    assert link_devices(files, folder) == []


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


def test_a_create_answers_what_its_launcher_is_to_cover(node: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "params").write_text(HOSTS)
    before = created(node, tmp_path / "before", sections(MKNOD))
    node.params.prepare()
    after = created(node, tmp_path / "after", sections(MKNOD))
    plain = created(node, tmp_path / "plain", sections())
    assert [answer.get("covers") for answer in (before, after, plain)] == [
        None,
        str(tmp_path / "params"),
        None,
    ]
    assert Path(after["copy"]).read_text().endswith("ModifyDeviceFiles: 0\n")


def created(node: FakeDaemon, folder: Path, spec: dict[str, Any]) -> Any:
    """Return the answer to the create of a share, by a launcher that binds it."""
    process = {**spec["process"], "env": ["GPUSHARE_MEMORY=1GiB"]}
    linux = {**spec["linux"], "cgroupsPath": f"/{folder.name}"}
    whole = {**spec, "process": process, "linux": linux}
    return BundleToCreate(folder, identity=folder.name, **whole).create(
        node, maker=os.getpid(), binds=True
    )
