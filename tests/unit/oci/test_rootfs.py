# SPDX-License-Identifier: Apache-2.0
"""A hostile image gets nothing of the host read, written or mounted over."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpushare.oci import rootfs as rootfs_module
from gpushare.oci.image_view import ImageView
from gpushare.oci.rootfs import OldKernelError, Rootfs, RootfsError
from tests.descriptors import open_count


@pytest.fixture(params=[Rootfs, ImageView])
def rootfs(root: Path, request: pytest.FixtureRequest) -> Iterator[Rootfs]:
    """Return each kind of rootfs: what looks at a name once answers as what asks the kernel."""
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    with closing(request.param(fd)) as rootfs:
        yield rootfs
    os.close(fd)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Return a file of the host, outside the rootfs."""
    path = tmp_path / "secret"
    path.write_text("the host's")
    return path


def test_a_file_is_read(root: Path, rootfs: Rootfs) -> None:
    (root / "etc").mkdir()
    (root / "etc/file").write_text("the image's")
    assert rootfs.read("/etc/file", 100) == b"the image's"
    assert rootfs.read("/etc/none", 100) is None
    assert rootfs.read("/none/file", 100) is None
    assert rootfs.read("/etc/file/below", 100) is None


@pytest.mark.parametrize("form", ["absolute", "dots", "folder"])
def test_a_link_to_the_host_leads_nowhere(
    root: Path, rootfs: Rootfs, secret: Path, form: str
) -> None:
    if form == "absolute":
        (root / "link").symlink_to(secret)
    elif form == "dots":
        (root / "link").symlink_to("../" * 30 + str(secret))
    else:
        (root / "folder").symlink_to(secret.parent)
        (root / "link").symlink_to("folder/secret")
    assert (root / "link").exists()
    # A relative name too: without RESOLVE_IN_ROOT, "/link" would be a path of the host.
    for name in ("/link", "link"):
        assert rootfs.read(name, 100) is None
        assert not rootfs.is_file(name)


def test_a_link_within_the_image_is_followed_as_in_the_container(
    root: Path, rootfs: Rootfs
) -> None:
    (root / "etc").mkdir()
    (root / "etc/real").write_text("the image's")
    (root / "link").symlink_to("/etc/real")
    (root / "etc/up").symlink_to("../../../../etc/real")
    assert rootfs.read("/link", 100) == b"the image's"
    assert rootfs.read("/etc/up", 100) == b"the image's"


def test_a_magic_link_is_refused(secret: Path) -> None:
    with secret.open() as held:
        proc_fd = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
        try:
            with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
                Rootfs(proc_fd).read(f"/{os.getpid()}/fd/{held.fileno()}", 100)
        finally:
            os.close(proc_fd)


@pytest.mark.parametrize("kind", ["pipe", "folder", "socket"])
def test_only_regular_files_are_opened(root: Path, rootfs: Rootfs, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(root / "x")
    elif kind == "folder":
        (root / "x").mkdir()
    else:
        os.mknod(root / "x", stat.S_IFSOCK | 0o600)
    with pytest.raises(RootfsError, match="not a regular file"):
        rootfs.read("/x", 100)


def test_a_file_over_the_limit_is_refused(root: Path, rootfs: Rootfs) -> None:
    (root / "x").write_bytes(b"x" * 101)
    with pytest.raises(RootfsError, match="over 100 bytes"):
        rootfs.read("/x", 100)
    assert rootfs.read("/x", 101) == b"x" * 101


def test_a_replaced_file_keeps_its_mode_and_is_made_where_it_is_missing(
    root: Path, rootfs: Rootfs
) -> None:
    (root / "etc").mkdir()
    old = root / "etc/old"
    old.write_text("old")
    old.chmod(0o600)
    rootfs.replace("/etc/old", b"new")
    rootfs.replace("/etc/fresh", b"new")
    assert old.read_text() == (root / "etc/fresh").read_text() == "new"
    assert stat.S_IMODE(old.stat().st_mode) == 0o600
    assert stat.S_IMODE((root / "etc/fresh").stat().st_mode) == 0o644
    assert sorted(path.name for path in (root / "etc").iterdir()) == ["fresh", "old"]


def test_a_link_in_the_place_of_the_file_is_replaced_not_written_through(
    root: Path, rootfs: Rootfs, secret: Path
) -> None:
    (root / "etc").mkdir()
    (root / "etc/x").symlink_to(secret)
    rootfs.replace("/etc/x", b"new")
    assert secret.read_text() == "the host's"
    assert (root / "etc/x").read_text() == "new"
    assert not (root / "etc/x").is_symlink()


def test_a_folder_that_is_a_link_to_the_host_is_not_written_in(
    root: Path, rootfs: Rootfs, secret: Path
) -> None:
    (root / "etc").symlink_to(secret.parent)
    with pytest.raises(FileNotFoundError):
        rootfs.replace("/etc/new", b"new")
    assert not (secret.parent / "new").exists()


@pytest.mark.parametrize(
    ("links", "path", "where"),
    [
        ({}, "/usr/lib/libcuda.so.1", "/usr/lib/libcuda.so.1"),
        ({}, "//usr/./lib/../lib64/x", "/usr/lib64/x"),
        ({}, "/../../x", "/x"),
        ({"lib": "usr/lib"}, "/lib/x", "/usr/lib/x"),
        ({"lib": "/usr/lib"}, "/lib/x", "/usr/lib/x"),
        ({"usr/lib/x": "x.550"}, "/usr/lib/x", "/usr/lib/x.550"),
        ({"usr/lib/x": "/etc/alternatives/x"}, "/usr/lib/x", "/etc/alternatives/x"),
        ({"usr/lib/x": "../../../../../../etc/passwd"}, "/usr/lib/x", "/etc/passwd"),
        ({"a": "b", "b": "c/d"}, "/a/e", "/c/d/e"),
        ({"a": "none/../../../x"}, "/a", "/x"),
        ({"a": "/"}, "/a/a/a/x", "/x"),
    ],
)
def test_a_destination_is_where_the_mount_really_lands(
    root: Path, rootfs: Rootfs, links: dict[str, str], path: str, where: str
) -> None:
    (root / "usr/lib").mkdir(parents=True)
    for name, target in links.items():
        (root / name).symlink_to(target)
    assert rootfs.resolve(path) == where


def test_links_in_a_circle_are_an_error(root: Path, rootfs: Rootfs) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        rootfs.resolve("/a")


def test_mount_points_have_the_owner_of_the_directory_above(root: Path, rootfs: Rootfs) -> None:
    """In a user namespace it may be one that the container's root is not."""
    os.chown(root, 4321, 4322)
    before = os.umask(0o077)  # gpushared's own
    try:
        rootfs.make_directory("/opt/gpushare/tenant")
        rootfs.make_file("/usr/bin/nvidia-smi")
        rootfs.make_link("/usr/lib/libcuda.so.1", "/opt/gpushare/lib/libcuda.so.1")
    finally:
        os.umask(before)
    for path, mode in (
        ("opt/gpushare/tenant", 0o755),
        ("opt", 0o755),
        ("usr/bin/nvidia-smi", 0o644),
    ):
        assert stat.S_IMODE((root / path).stat().st_mode) == mode
    made = [path for path in root.rglob("*") if path != root]
    assert {path.name for path in made} >= {"tenant", "nvidia-smi", "libcuda.so.1"}
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in made} == {(4321, 4322)}


@pytest.mark.parametrize("target", ["absolute", "relative"])
def test_a_mount_point_is_made_through_no_link(
    root: Path, rootfs: Rootfs, secret: Path, target: str
) -> None:
    """One that was put there after the path was resolved."""
    leads = str(secret.parent) if target == "absolute" else f"..{secret.parent}"
    (root / "opt").symlink_to(leads)
    (root / "file").symlink_to(secret.parent / "new")
    before = sorted(secret.parent.iterdir())
    for make in (rootfs.make_directory, rootfs.make_file):
        with pytest.raises(OSError, match=r".+"):
            make("/opt/new")
    with pytest.raises(OSError, match=r".+"):
        rootfs.make_link("/opt/new", "/x")
    with pytest.raises(FileExistsError):
        rootfs.make_file("/file")
    assert sorted(secret.parent.iterdir()) == before


def test_no_descriptor_is_left_open(root: Path, rootfs: Rootfs) -> None:
    (root / "a/b/c").mkdir(parents=True)
    (root / "a/link").symlink_to("/a/b/../b/c")
    (root / "circle").symlink_to("circle")
    os.mkfifo(root / "pipe")

    def everything() -> None:
        rootfs.resolve("/a/link/none/../x")
        rootfs.names("/a/b")
        rootfs.replace("/a/file", b"x")
        rootfs.make_directory("/made/here")
        for make in (rootfs.make_file, rootfs.make_directory):
            with pytest.raises(OSError, match=r".+"):
                make("/circle/x")
        rootfs.read("/a/file", 10)
        for path in ("/circle", "/pipe"):
            with pytest.raises(OSError, match=r".+"):
                rootfs.read(path, 10)
        with pytest.raises(OSError, match=r".+"):
            rootfs.resolve("/circle")

    everything()
    before = open_count()
    everything()
    assert open_count() == before


def test_a_kernel_without_openat2_is_named_not_worked_around(
    rootfs: Rootfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rootfs_module, "_SYS_OPENAT2", 100_000)
    asking = Rootfs(rootfs.fd)
    for look in (asking.is_directory, asking.is_file, asking.names, rootfs.make_directory):
        with pytest.raises(OldKernelError, match=r"gpushare needs Linux 5\.6 or newer"):
            look("/etc")


def test_names_of_a_path_that_is_no_folder_are_none(
    root: Path, rootfs: Rootfs, secret: Path
) -> None:
    (root / "b").mkdir()
    (root / "b/2").touch()
    (root / "b/1").touch()
    (root / "link").symlink_to(secret.parent)
    assert rootfs.names("/b") == ["1", "2"]
    assert rootfs.names("/b/1") == rootfs.names("/none") == rootfs.names("/link") == []
