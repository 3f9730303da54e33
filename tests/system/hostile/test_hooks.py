# SPDX-License-Identifier: Apache-2.0
"""What an image says of its environment reaches no program that runs as root on the host."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .conftest import started
from .container import RuntimeContainer, RuntimeNamespace

#: crun 1.8 fails to create a container if a hook ends before the state is on its stdin (EPIPE).
READS_ITS_STATE = "#!/bin/sh\nexec /bin/cat >/dev/null\n"
#: docker's, which libnetwork cannot do without, with all that JSON can hold.
DOCKERS = {
    "args": ["libnetwork-setkey", "-exec-root=/run/docker", "4f1c", "&<>"],
    "x-kept": {"b": [1.5, None], "a": "\u00e9"},
}


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


def test_hooks_of_others_are_kept_byte_for_byte(container: RuntimeContainer) -> None:
    """Also after a second pass. Ours has an environment of its own."""
    program = container.path / "reads-its-state"
    program.write_text(READS_ITS_STATE)
    program.chmod(0o755)
    path = str(program)
    theirs = {
        "prestart": [{"path": path, **DOCKERS}, {"path": path}],
        "createRuntime": [{"path": path, "env": ["A=1", "A=2"], "timeout": 300}],
        "poststart": [{"path": path, "args": []}],
        "poststop": [{"path": path, "args": ["x", ""]}],
    }
    container.config["hooks"] = theirs
    container.config["process"]["env"] += ["LD_PRELOAD=/evil.so", "ENV=/evil.sh"]
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
        assert [stage for stage in kept if kept[stage] != own[stage]] == ["createRuntime"]
        [ours] = [hook for hook in kept["createRuntime"] if "gpushare-hook" in hook["path"]]
        assert not {name.partition("=")[0] for name in ours["env"]} & {"LD_PRELOAD", "ENV"}
        assert ours["timeout"] > 0
        container.remove()
        container.place.assert_empty()
