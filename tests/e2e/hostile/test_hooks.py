# SPDX-License-Identifier: Apache-2.0
"""What an image says of its environment reaches no program that runs as root on the host."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .container import Container

#: docker's, which libnetwork cannot do without, and one that says nothing but its path.
DOCKERS = {
    "path": "/bin/true",
    "args": ["libnetwork-setkey", "-exec-root=/run/docker", "4f1c", "&<>"],
    "x-kept": {"b": [1.5, None], "a": "\u00e9"},
}


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


def poisoned(container: Container, library: bytes) -> dict[str, str]:
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


def test_an_images_ld_preload_is_loaded_by_nothing_on_the_host(
    container: Container, library: bytes, loaded: Path
) -> None:
    """From the launcher to poststop, and by the daemon (CVE-2025-23266)."""
    environment = poisoned(container, library)
    assert container.create() == 0
    assert container.call("start").returncode == 0
    container.through.wait_for(container.id, "running")
    row = container.row()
    assert row is not None
    assert row["state"] == "bound", "no hook ran"
    container.remove()
    container.place.assert_empty()
    assert list(loaded.iterdir()) == []
    # The library works: whatever inherits that environment loads it.
    subprocess.run(["/bin/true"], check=True, env=environment)
    assert list(loaded.iterdir()) != []


def test_every_hook_that_is_written_has_an_environment_of_its_own(
    container: Container, library: bytes
) -> None:
    environment = poisoned(container, library)
    assert container.create() == 0
    ours = [hook for hook in every_hook(container.read()) if "gpushare-hook" in hook["path"]]
    assert {hook["args"][1] for hook in ours} == {"createRuntime", "poststop"}
    for hook in ours:
        assert hook["env"]
        assert not environment.keys() & {variable.partition("=")[0] for variable in hook["env"]}
        assert hook["timeout"] > 0
        assert not hook["path"].startswith(str(container.rootfs))


def every_hook(config: dict[str, Any]) -> list[dict[str, Any]]:
    return [hook for hooks in config["hooks"].values() for hook in hooks]


def test_hooks_of_others_are_kept_byte_for_byte(container: Container) -> None:
    """Also after a second pass, and once the container asks for nothing any more."""
    theirs = {
        "prestart": [DOCKERS, {"path": "/bin/true"}],
        "createRuntime": [{"path": "/bin/true", "env": ["A=1", "A=2"], "timeout": 3}],
        "poststart": [{"path": "/bin/true", "args": []}],
        "poststop": [{"path": "/bin/true", "args": ["x", ""]}],
    }
    container.config["hooks"] = theirs
    container.config["process"]["args"] = ["/bin/busybox", "sleep", "1000"]
    container.save()
    before = json.dumps(theirs)
    for _ in range(2):
        assert container.create() == 0
        kept = container.read()["hooks"]
        own = {
            stage: [hook for hook in hooks if "gpushare-hook" not in hook["path"]]
            for stage, hooks in kept.items()
        }
        assert json.dumps(own) == before
        assert [stage for stage in kept if kept[stage] != own[stage]] == [
            "createRuntime",
            "poststop",
        ]
        container.remove()
        container.place.assert_empty()
    config = container.read()
    config["process"]["env"] = ["PATH=/bin"]
    container.save(json.dumps(config))
    container.create()  # an ordinary container: nobody looks, and what was written stays
    container.remove()
