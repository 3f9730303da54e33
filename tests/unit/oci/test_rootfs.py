# SPDX-License-Identifier: Apache-2.0
"""A hostile image gets nothing of the host read, written or mounted over; looks are compared."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.oci import rootfs as rootfs_module
from gpushare.oci.image_view import ImageView, Seen
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


def test_a_magic_link_is_refused(secret: Path) -> None:
    with secret.open() as held:
        proc_fd = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
        try:
            with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
                Rootfs(proc_fd).read(f"/{os.getpid()}/fd/{held.fileno()}", 100)
        finally:
            os.close(proc_fd)


@pytest.mark.parametrize(
    "make", [os.mkfifo, Path.mkdir, lambda path: os.mknod(path, stat.S_IFSOCK | 0o600)]
)
def test_only_regular_files_are_opened(
    root: Path, rootfs: Rootfs, make: Callable[[Path], object]
) -> None:
    make(root / "x")
    with pytest.raises(RootfsError, match="not a regular file"):
        rootfs.read("/x", 100)
    assert rootfs.head("/x", 4) is None


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


LIBRARIES = "usr/lib/x86_64-linux-gnu"


@contextmanager
def viewed(root: Path) -> Iterator[ImageView]:
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        with closing(ImageView(fd)) as view:
            yield view
    finally:
        os.close(fd)


def answers(rootfs: Rootfs) -> list[object]:
    """Ask what a create asks."""
    return [
        rootfs.resolve("/lib/x86_64-linux-gnu/libcuda.so.1"),
        rootfs.is_file(f"/{LIBRARIES}/libc.so.6"),
        rootfs.is_directory("/usr/lib64"),
        rootfs.exists("/opt/gpushare"),
        rootfs.names(f"/{LIBRARIES}"),
        rootfs.read("/etc/ld.so.cache", 1 << 20),
        rootfs.head("/bin/program", 4),
        rootfs.head("/usr/lib64", 4),
    ]


def seen_of(root: Path) -> Seen:
    with viewed(root) as view:
        answers(view)
        seen = view.seen()
    assert seen is not None
    return seen


@pytest.fixture
def image(root: Path) -> Path:
    for folder in (LIBRARIES, "usr/lib64", "etc", "bin", "srv"):
        (root / folder).mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    (root / LIBRARIES / "libc.so.6").write_text("libc")
    (root / "etc/ld.so.cache").write_text("a cache")
    (root / "bin/program").write_text("ELF, and more")
    return root


def moved(root: Path, name: str) -> None:
    """Put a link in the place of a directory, which is elsewhere now."""
    (root / name).rename(root / "srv/moved")
    (root / name).symlink_to("/srv/moved")


def led_elsewhere(root: Path) -> None:
    shutil.copytree(root / "usr/lib", root / "srv/lib", symlinks=True)
    (root / "lib").unlink()
    (root / "lib").symlink_to("srv/lib")


CHANGES: dict[str, Callable[[Path], object]] = {
    "a link that leads elsewhere": led_elsewhere,
    "a link in the place of a directory": lambda root: moved(root, LIBRARIES),
    "a file that was missing": lambda root: (root / LIBRARIES / "libcuda.so.1").touch(),
    "a name that was only listed": lambda root: (root / LIBRARIES / "libcuda.so.535").touch(),
    "a file that is gone": lambda root: (root / LIBRARIES / "libc.so.6").unlink(),
    "a directory that is gone": lambda root: (root / "usr/lib64").rmdir(),
    "a directory that was missing": lambda root: (root / "opt/gpushare").mkdir(parents=True),
    "other bytes of the same length": lambda root: (root / "etc/ld.so.cache").write_text("b cache"),
    "another program": lambda root: (root / "bin/program").write_text("#!/bin/sh"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_image_that_has_changed_does_not_match(
    image: Path, change: Callable[[Path], object]
) -> None:
    seen = seen_of(image)
    change(image)
    with viewed(image) as view:
        assert not view.matches(seen)


def test_a_directory_whose_times_an_image_can_choose_is_read(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system without a time of change shows that of the content in its place."""

    def chosen(directory: int) -> tuple[int, ...]:
        del directory
        return (1, 4096, 0, 0)

    monkeypatch.setattr("gpushare.oci.image_view.stamp_of", chosen)
    seen = seen_of(image)
    (image / LIBRARIES / "libcuda.so.535").touch()
    with viewed(image) as view:
        assert not view.matches(seen)


def test_files_that_the_view_creates_are_not_part_of_the_image(image: Path) -> None:
    before = seen_of(image)
    with viewed(image) as view:
        answers(view)
        view.make_link(f"/{LIBRARIES}/libcuda.so.1", "/opt/gpushare/lib/libcuda.so.1")
        view.make_file("/opt/gpushare/driver/libcuda.so.1")
        view.make_directory("/opt/gpushare/tenant")
        assert view.resolve(f"/{LIBRARIES}/libcuda.so.1") == "/opt/gpushare/lib/libcuda.so.1"
        assert view.exists("/opt/gpushare/driver/libcuda.so.1")
        assert view.is_directory("/opt/gpushare")
        assert not view.exists("/opt/gpushare/lib")
        created, seen = view.created, view.seen()
    assert seen is not None
    with viewed(image) as view:
        assert not view.matches(before)
    (image / LIBRARIES / "libcuda.so.1").unlink()
    shutil.rmtree(image / "opt")
    with viewed(image) as view:
        assert view.matches(before)
        assert view.matches(seen)
        view.create(created)
    assert (image / LIBRARIES / "libcuda.so.1").readlink() == Path("/opt/gpushare/lib/libcuda.so.1")
    assert (image / "opt/gpushare/driver/libcuda.so.1").is_file()
    assert (image / "opt/gpushare/tenant").is_dir()


def test_an_image_of_which_too_much_was_read_is_not_kept(image: Path) -> None:
    (image / "etc/ld.so.cache").write_bytes(bytes(1 << 20))
    with viewed(image) as view:
        answers(view)
        assert view.seen() is None


PATHS = st.sampled_from(["a", "b", "a/a", "a/b", "b/a", "a/a/a"])
STEPS = st.lists(
    st.tuples(PATHS, st.sampled_from(["directory", "file", "none", "a", "/b", "../a", "b/.."])),
    max_size=6,
)
QUESTIONS = st.lists(
    st.tuples(
        st.sampled_from(["resolve", "is_file", "is_directory", "exists", "names", "read"]),
        st.sampled_from(["/a", "/b/a", "/a/b/../a", "/a/a/b", "/b", "/"]),
    ),
    max_size=5,
)


def arrange(root: Path, steps: list[tuple[str, str]]) -> None:
    for path, kind in steps:
        here = root / path
        if not here.parent.is_dir() or here.parent.is_symlink():
            continue
        if here.is_symlink() or here.is_file():
            here.unlink()
        elif here.is_dir():
            shutil.rmtree(here)
        if kind == "directory":
            here.mkdir()
        elif kind == "file":
            here.write_text(path)
        elif kind != "none":
            here.symlink_to(kind)


def ask(rootfs: Rootfs, questions: list[tuple[str, str]]) -> list[object]:
    found: list[object] = []
    for question, path in questions:
        try:
            extra = (100,) if question == "read" else ()
            found.append(getattr(rootfs, question)(path, *extra))
        except OSError as error:
            found.append(error.errno)
    return found


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@given(STEPS, STEPS, QUESTIONS)
def test_a_matching_view_gives_the_same_answers(
    scratch: Path,
    first: list[tuple[str, str]],
    then: list[tuple[str, str]],
    questions: list[tuple[str, str]],
) -> None:
    root = scratch / "root"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    arrange(root, first)
    with viewed(root) as view:
        before = ask(view, questions)
        seen = view.seen()
    with viewed(root) as view:
        assert seen is None or view.matches(seen)
    arrange(root, then)
    with viewed(root) as view:
        if seen is not None and view.matches(seen):
            assert ask(Rootfs(view.fd), questions) == before


@given(STEPS, QUESTIONS)
def test_paths_resolve_as_in_the_kernel(
    scratch: Path, steps: list[tuple[str, str]], questions: list[tuple[str, str]]
) -> None:
    root = scratch / "root"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    arrange(root, steps)
    with viewed(root) as view:
        rootfs = Rootfs(view.fd)
        for _, path in questions:
            try:
                with rootfs.open(path, os.O_PATH) as found:
                    real = str(Path(f"/proc/self/fd/{found}").readlink()).removeprefix(str(root))
            except OSError:
                assert not view.exists(path)
                continue
            assert rootfs.resolve(path) == view.resolve(path) == (real or "/")
            assert view.is_directory(path) == rootfs.is_directory(path)
