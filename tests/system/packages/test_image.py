# SPDX-License-Identifier: Apache-2.0
"""The image: what it contains, and its containers of podman.

They copy gpushare to a host's root, and set it up there, as a DaemonSet does.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from packages import host_bundle
from packages import image as image_package

from tests.stack import Stack
from tests.stack.distribution import DEBIAN13

pytestmark = pytest.mark.needs("package", "debian13")

MOST_BYTES = 150_000_000
#: podman's defaults need more privileges than every machine gives.
LIMITS = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000")

Run = Callable[..., str]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stack]:
    """A place with Debian's podman."""
    with Stack(distribution=DEBIAN13) as made:
        yield made


@pytest.fixture
def host(stage: Stack) -> Path:
    """The root of a host that has a low-level runtime."""
    made = stage.root / "host"
    runtime = made / "usr/sbin/runc"
    runtime.parent.mkdir(parents=True)
    runtime.write_text("#!/bin/sh\n")
    runtime.chmod(0o755)
    return made


@pytest.fixture
def run(stage: Stack, image: Path, host: Path) -> Run:
    """A function that runs the image with arguments, the host's root at /host."""
    visible = Path(shutil.copy(image, stage.root))
    tag = f"{image_package.NAME}:{visible.name.split('-')[1]}"
    words = [f"--root={stage.root}/podman", "--storage-driver=overlay"]
    words += ["--cgroup-manager=cgroupfs", "--events-backend=file", "--runtime=runc"]
    podman = stage.argv("podman", *words)
    output([*podman, "load", "--input", str(visible)], stage)
    start = [*podman, "run", "--rm", "--network=none", *LIMITS, f"--volume={host}:/host", tag]
    return lambda *command: output([*start, *command], stage)


def output(argv: list[str], stage: Stack) -> str:
    done = subprocess.run(argv, check=False, capture_output=True, text=True, env=stage.environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_copies_gpushare_to_a_host_and_sets_it_up_there(run: Run, host: Path) -> None:
    place = run("copy", "/host").strip()
    bundle = host / place.lstrip("/")
    assert Path(place).parent == host_bundle.PREFIX
    listed = bundle / image_package.CONTENTS
    subprocess.run(["sha256sum", "--check", "--quiet", listed], check=True, cwd=bundle)
    kept = (bundle / "bin/gpushared").stat().st_ino
    assert run("copy", "/host").strip() == place
    assert (bundle / "bin/gpushared").stat().st_ino == kept

    listed.write_text("another build of this version\n")
    assert run("copy", "/host").strip() == place
    assert (bundle / "bin/gpushared").stat().st_ino != kept
    assert [path.name for path in bundle.parent.iterdir()] == [bundle.name]

    # It does not need the host's libraries; there are none.
    on_host = ["chroot", str(host), f"{place}/bin/gpushare", "--version"]
    version = subprocess.run(on_host, check=True, capture_output=True, text=True).stdout
    assert version == f"gpushare {bundle.name}\n" == run("gpushare", "--version")

    run("gpushare", "setup", "--root", "/host", "--simulate", "h200")
    unit = (host / "etc/systemd/system/gpushared.service").read_text()
    assert f"\nExecStart={place}/bin/gpushared\n" in unit
    run("gpushare", "setup", "--root", "/host", "--undo")
    assert not (host / "etc/systemd/system/gpushared.service").exists()


def test_it_has_no_file_that_changes_the_user_and_only_root_owns_files(image: Path) -> None:
    assert image.stat().st_size <= MOST_BYTES
    entries = list(files(image))
    assert len(entries) > 1000
    assert [entry.name for entry in entries if entry.mode & 0o6000] == []
    assert {(entry.uid, entry.gid) for entry in entries} == {(0, 0)}
    shared = {entry.name for entry in entries if entry.mode & 0o022 and not entry.issym()}
    assert shared == {"tmp", "var/tmp"}


def manifest(archive: tarfile.TarFile) -> Any:
    (entry,) = json.loads(read(archive, "index.json"))["manifests"]
    return json.loads(read(archive, blob(entry["digest"])))


def layers(archive: tarfile.TarFile) -> list[str]:
    return [blob(layer["digest"]) for layer in manifest(archive)["layers"]]


def blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def read(archive: tarfile.TarFile, name: str) -> bytes:
    content = archive.extractfile(name)
    assert content is not None
    return content.read()


def files(image: Path) -> Iterator[tarfile.TarInfo]:
    with tarfile.open(image) as archive:
        for layer in layers(archive):
            with tarfile.open(fileobj=archive.extractfile(layer), mode="r:gz") as opened:
                yield from opened
