# SPDX-License-Identifier: Apache-2.0
"""Nothing is written into a volume, wherever in a container with a GPU it is mounted."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import abi
from gpushare.daemon.pages.status_page import StatusPage
from gpushare.daemon.pages.tenants import CardGrant, GrantPage

from .container import GIB, RuntimeContainer

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
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


@pytest.mark.gate
@pytest.mark.parametrize("destination", [LIBRARIES, "/usr", "/opt", abi.CONTAINER_DIR])
def test_a_volume_stays_as_it_was(
    container: RuntimeContainer, source: Path, destination: str
) -> None:
    assert_stays_as_it_was(container, source, destination, "rprivate")


@pytest.mark.parametrize("runtime", ["runc", "crun"])
@pytest.mark.parametrize("options", [("rshared",), ("ro", "rprivate")], ids=" ".join)
@pytest.mark.parametrize("destination", ["/opt/gpushare", "/run", "/usr/lib", "/etc"])
def test_a_shared_volume_stays_as_it_was(
    container: RuntimeContainer, source: Path, destination: str, options: tuple[str, ...]
) -> None:
    assert_stays_as_it_was(container, source, destination, *options)


def assert_stays_as_it_was(
    container: RuntimeContainer, source: Path, destination: str, *options: str
) -> None:
    copied(container, source, destination)
    mount(container, source, destination, *options)
    refused = destination == abi.CONTAINER_DIR
    assert outcome(container, source, destination) == ("refused" if refused else "served")


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


def test_no_library_is_left_in_the_layer(container: RuntimeContainer) -> None:
    """After `docker commit`, a loader must not find an empty libcuda.so.1, but none."""
    for _ in range(2):  # the second time over its own links
        with container.started() as tenant:
            assert tenant.ask("info")["total"] == GIB
    for name in ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"):
        link = container.rootfs / LIBRARIES[1:] / name
        assert link.is_symlink()
        assert not (container.rootfs / str(link.readlink())[1:]).exists()
    container.config["process"] |= {"env": ["PATH=/bin"], "args": ["/usr/bin/gpushare-probe"]}
    container.save()
    done = container.call("run", "--bundle", str(container.path))
    assert done.returncode == 3, done.stderr
    assert "file too short" not in done.stdout + done.stderr


@pytest.mark.gate
@pytest.mark.parametrize("folder", [abi.CONTAINER_DIR, abi.HOST_DIR])
def test_pages_that_an_image_ships_are_never_read(container: RuntimeContainer, folder: str) -> None:
    [card] = container.place.client.cards()
    forged = container.rootfs / folder.lstrip("/") / "tenant"
    forged.mkdir(parents=True)
    directory = os.open(forged, os.O_DIRECTORY)
    try:
        StatusPage.make(directory)
        GrantPage.make(directory, "0" * 16, [CardGrant(card["uuid"], 9 * GIB, 0, 0)]).set_bound()
    finally:
        os.close(directory)
    with container.started() as tenant:
        assert tenant.ask("info")["total"] == GIB
