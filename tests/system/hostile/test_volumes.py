# SPDX-License-Identifier: Apache-2.0
"""Nothing is written into a volume, wherever in a container with a GPU it is mounted."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .container import GIB, RuntimeContainer

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
#: Every destination of gpushare's is beneath one of these.
COVERED = ("/opt", "/opt/gpushare", "/usr", "/usr/lib", LIBRARIES, "/usr/bin", "/etc")
REFUSED = re.compile(r"gpushare: the volume at (\S+) covers .+ Mount the volume at another path$")


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    """Return a folder of the host with the files that a container of the probe may need."""
    folder = tmp_path / "volume"
    folder.mkdir()
    (folder / "kept").write_text("the host's")
    yield folder
    for point in _mounts_beneath(tmp_path):
        subprocess.run(["umount", "--lazy", point], check=False)


def _mounts_beneath(folder: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4] for line in lines if line.split()[4].startswith(f"{folder}/")]


def listing(folder: Path) -> list[tuple[str, int, int, bytes]]:
    """Return what is in a folder: names, kinds and modes, change times of folders, contents."""
    found = []
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        text = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found.append((str(path), status.st_mode, status.st_mtime_ns, text))
    return [("", 0, folder.stat().st_mtime_ns, b""), *found]


def mount(container: RuntimeContainer, source: Path, destination: str, *options: str) -> None:
    """Add a volume to the container's spec, as an engine does."""
    entry = {
        "destination": destination,
        "type": "bind",
        "source": str(source),
        "options": ["rbind", *(options or ("rprivate",))],
    }
    container.config["mounts"].append(entry)
    container.save()


def copied(container: RuntimeContainer, source: Path, destination: str) -> None:
    """Fill the volume with what the image has there, so that the container's program still runs."""
    below = container.rootfs / destination.lstrip("/")
    if below.is_dir():
        subprocess.run(["cp", "--archive", f"{below}/.", str(source)], check=True)


def outcome(container: RuntimeContainer, source: Path, volume: str) -> str:
    """Run the container to its end: it is "served" or "refused", and the volume is untouched."""
    before = listing(source)
    container.config["process"]["args"] = ["/usr/bin/gpushare-probe", "info"]
    container.save()
    done = subprocess.run(
        container.argv("run", "--bundle", str(container.path), container.id),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        text=True,
        env=container.stack.environment,
        timeout=60,
    )
    assert listing(source) == before
    assert _mounts_beneath(source) == []
    if done.returncode == 0:
        assert f'"total":{GIB}' in done.stdout
        return "served"
    [line] = [line for line in done.stderr.splitlines() if "gpushare: " in line]
    found = REFUSED.search(line)
    assert found is not None, done.stderr
    assert found[1] == volume
    return "refused"


@pytest.mark.parametrize("options", [("rprivate",), ("ro", "rprivate"), ("rshared",)], ids=" ".join)
@pytest.mark.parametrize("destination", COVERED)
def test_a_volume_stays_as_it_was(
    container: RuntimeContainer, source: Path, destination: str, options: tuple[str, ...]
) -> None:
    copied(container, source, destination)
    mount(container, source, destination, *options)
    refused = destination.startswith("/opt")
    assert outcome(container, source, destination) == ("refused" if refused else "served")


def test_a_library_folder_of_the_image_by_another_name(
    container: RuntimeContainer, source: Path
) -> None:
    """The destination is a link of the image: the volume covers what the link leads to."""
    (container.rootfs / "usr/lib").mkdir()
    (container.rootfs / "usr/lib/x86_64-linux-gnu").mkdir()
    (container.rootfs / "libraries").symlink_to("usr/lib/x86_64-linux-gnu")
    mount(container, source, "/libraries")
    assert outcome(container, source, "") == "served"


def test_a_volume_over_the_links_of_an_earlier_start(
    container: RuntimeContainer, source: Path
) -> None:
    """The links are in the layer, where the volume hides them."""
    with container.started():
        pass
    mount(container, source, LIBRARIES)
    assert outcome(container, source, "") == "served"


def test_a_volume_in_a_volume_and_one_below_a_tmpfs(
    container: RuntimeContainer, source: Path
) -> None:
    """The last mount over a path is the one that counts."""
    (source / "inner").mkdir()
    mount(container, source, LIBRARIES)
    mount(container, source / "inner", f"{LIBRARIES}/inner")
    mount(container, source, "/opt")
    container.config["mounts"].append(
        {"destination": "/opt", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid"]}
    )
    container.save()
    assert outcome(container, source, "") == "served"


def test_a_tmpfs_below_a_volume_does_not_count(container: RuntimeContainer, source: Path) -> None:
    container.config["mounts"].append(
        {"destination": "/opt/gpushare", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid"]}
    )
    mount(container, source, "/opt")
    assert outcome(container, source, "/opt") == "refused"


def test_a_volume_over_the_whole_root(container: RuntimeContainer, source: Path) -> None:
    mount(container, source, "/")
    assert outcome(container, source, "/") == "refused"


def test_both_folders_that_the_loader_searches(container: RuntimeContainer, source: Path) -> None:
    """Without a directory of the loader and without its cache there is no place for a library."""
    mount(container, source, LIBRARIES)
    mount(container, source, "/etc")
    assert outcome(container, source, LIBRARIES) == "refused"


def test_a_file_of_the_driver_that_the_user_mounts(
    container: RuntimeContainer, source: Path
) -> None:
    """It exists, so nothing is created; the interposer library is mounted over it."""
    real = source / "libcuda.so.1"
    real.write_text("no library")
    mount(container, real, f"{LIBRARIES}/libcuda.so.1")
    assert outcome(container, source, "") == "served"


def test_a_shared_mount_of_one_file_passes_nothing_to_the_host(
    container: RuntimeContainer, source: Path
) -> None:
    subprocess.run(["mount", "--bind", str(source), str(source)], check=True)
    subprocess.run(["mount", "--make-shared", str(source)], check=True)
    try:
        real = source / "libcuda.so.1"
        real.write_text("no library")
        mount(container, real, f"{LIBRARIES}/libcuda.so.1", "rshared")
        assert outcome(container, source, "") == "served"
        assert real.read_text() == "no library"
    finally:
        subprocess.run(["umount", str(source)], check=True)


def test_a_volume_over_dev_gets_no_device(container: RuntimeContainer, source: Path) -> None:
    for minor, name in ((3, "null"), (5, "zero"), (7, "full"), (8, "random"), (9, "urandom")):
        os.mknod(source / name, stat.S_IFCHR | 0o666, os.makedev(1, minor))
    for name in ("pts", "shm", "mqueue"):
        (source / name).mkdir()
    mount(container, source, "/dev")
    before = sorted(path.name for path in source.iterdir())
    container.try_to_run()
    assert sorted(path.name for path in source.iterdir()) == before


def test_no_library_is_left_in_the_layer(container: RuntimeContainer) -> None:
    """After `docker commit`, a loader must not find an empty libcuda.so.1."""
    with container.started():
        pass
    for name in ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"):
        link = container.rootfs / LIBRARIES[1:] / name
        assert link.is_symlink()
        assert not (container.rootfs / str(link.readlink())[1:]).exists()
    with container.started() as tenant:  # again, over its own links
        assert tenant.ask("info")["total"] == GIB


def test_the_program_of_a_container_without_gpu_finds_no_library_afterwards(
    container: RuntimeContainer,
) -> None:
    """The loader says that there is none, as in an image that never had a GPU."""
    with container.started():
        pass
    bare = dict(container.config, process=dict(container.config["process"], env=["PATH=/bin"]))
    bare["process"]["args"] = ["/usr/bin/gpushare-probe", "info"]
    container.config = bare
    container.save()
    done = container.call("run", "--bundle", str(container.path))
    assert done.returncode == 3, done.stderr
    assert "file too short" not in done.stdout + done.stderr
