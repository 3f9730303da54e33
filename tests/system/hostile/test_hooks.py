# SPDX-License-Identifier: Apache-2.0
"""What an image says of its environment reaches no program that runs as root on the host."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .conftest import started
from .container import RuntimeContainer, RuntimeNamespace


@pytest.fixture(scope="module", params=["hook"])
def place(request: pytest.FixtureRequest) -> Iterator[RuntimeNamespace]:
    """One daemon for each way to bind."""
    with started(bind=request.param) as made:
        yield made


@pytest.fixture
def loaded(tmp_path: Path) -> Path:
    """A folder of the host where the image's library notes that it was loaded."""
    folder = tmp_path / "loaded"
    folder.mkdir(mode=0o777)
    return folder


@pytest.fixture
def library(compiled: Callable[..., Path], loaded: Path) -> bytes:
    flags = ("-shared", "-fPIC", f'-DEVIL_FOLDER="{loaded}"')
    built = compiled("evil", *flags)
    content = built.read_bytes()
    built.unlink()  # the next test has another folder
    return content


def poisoned(container: RuntimeContainer, library: bytes) -> dict[str, str]:
    """Put the library into the image, and have the image's environment load it everywhere."""
    for folder in ("", "tmp"):
        (container.rootfs / folder / "evil.so").write_bytes(library)
    places = ("./evil.so", "/evil.so", f"{container.rootfs}/evil.so", "/proc/self/cwd/evil.so")
    environment = {
        "LD_PRELOAD": ":".join(places),
        "LD_AUDIT": f"{container.rootfs}/evil.so",
        "LD_LIBRARY_PATH": f"{container.rootfs}/tmp",
        "GCONV_PATH": str(container.rootfs),
        "GLIBC_TUNABLES": "glibc.malloc.check=3",
        "BASH_ENV": f"{container.rootfs}/evil.sh",
        "ENV": f"{container.rootfs}/evil.sh",
        "PYTHONPATH": str(container.rootfs),
        "PYTHONSTARTUP": f"{container.rootfs}/evil.py",
    }
    container.config["process"]["env"] += [f"{name}={text}" for name, text in environment.items()]
    # A program of its own that the host's loader does not start.
    container.config["process"]["args"] = ["/bin/busybox", "sleep", "1000"]
    container.save()
    return environment


@pytest.mark.gate
@pytest.mark.parametrize("place", ["hook", "launcher"], indirect=True, scope="module")
def test_an_images_ld_preload_is_loaded_by_nothing_on_the_host(
    container: RuntimeContainer, library: bytes, loaded: Path
) -> None:
    """From the launcher to the hook, and by the daemon (CVE-2025-23266)."""
    environment = poisoned(container, library)
    assert container.create() == 0
    assert container.call("start").returncode == 0
    container.through.wait_for(container.id, "running")
    row = container.row()
    assert row is not None
    assert row["state"] == "bound", "nothing bound it"
    container.remove()
    container.place.assert_empty()
    assert list(loaded.iterdir()) == []
    # The library works: whatever inherits that environment loads it.
    subprocess.run(["/bin/true"], check=True, env=environment)
    assert list(loaded.iterdir()) != []
