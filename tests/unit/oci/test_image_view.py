# SPDX-License-Identifier: Apache-2.0
"""What was seen of an image is compared with all that an answer depended on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.oci.image_view import ImageView, Seen
from gpushare.oci.rootfs import Rootfs

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


def test_an_image_that_is_as_it_was_matches(image: Path) -> None:
    seen = seen_of(image)
    (image / "srv/data").write_text("nothing reads it")
    (image / "bin/program").write_text("ELF, and other code")
    with viewed(image) as view:
        assert view.matches(seen)


def test_a_known_directory_is_not_read_again(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = image / LIBRARIES
    os.utime(folder, (1, 1))  # as it is unpacked: its content is older than itself
    seen = seen_of(image)

    def read(directory: int) -> list[str]:
        raise AssertionError(directory)

    monkeypatch.setattr("gpushare.oci.image_view.names_in", read)
    with viewed(image) as view:
        assert view.matches(seen)
    (folder / "new").touch()
    before = folder.stat().st_ctime_ns
    while folder.stat().st_ctime_ns == before:  # the clock of the file system is coarse
        os.utime(folder, (1, 1))
    with viewed(image) as view, pytest.raises(AssertionError):
        view.matches(seen)


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


def test_a_listing_after_a_change_of_its_own_is_not_kept(image: Path) -> None:
    with viewed(image) as view:
        view.make_file(f"/{LIBRARIES}/libcuda.so.1")
        view.names(f"/{LIBRARIES}")
        assert view.seen() is None


def test_an_image_of_which_too_much_was_read_is_not_kept(image: Path) -> None:
    (image / "etc/ld.so.cache").write_bytes(bytes(1 << 20))
    with viewed(image) as view:
        answers(view)
        assert view.seen() is None


def test_an_image_with_too_many_long_names_is_not_kept(image: Path) -> None:
    with viewed(image) as view:
        for number in range(3000):
            view.exists(f"/{LIBRARIES}/{number:0250}")
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
