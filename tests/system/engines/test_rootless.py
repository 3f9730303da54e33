# SPDX-License-Identifier: Apache-2.0
"""Rootless engines warn that their containers get no GPU; containers without a request start."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.stack import Stack
from tests.stack.bundle import Bundle

from .podman import BUSYBOX, Podman
from .slices import NO_DRIVER

USER = 5  # games, in every Debian
MESSAGE = (
    'gpushare: this container requests a GPU (annotation "gpushare.io/memory"), but '
    "GPUs are not available to rootless engines. Start it with sudo, or without a "
    "container: gpushare run."
)
ANNOTATION = {"gpushare.io/memory": "4GiB"}
AS_USER = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
#: As a rootless engine does: root in a user namespace, where root's own files are nobody's.
IN_NAMESPACE = (*AS_USER, "/usr/bin/unshare", "--user", "--map-root-user")


@pytest.fixture
def bundle(stage: Stack) -> Iterator[Bundle]:
    made = Bundle(stage, annotations=ANNOTATION)
    yield made
    made.remove()


@pytest.mark.parametrize("before", [AS_USER, IN_NAMESPACE], ids=["user", "user-namespace"])
def test_a_caller_without_root_gets_advice(
    stage: Stack, bundle: Bundle, before: tuple[str, ...]
) -> None:
    launcher = str(stage.installation.launcher)
    words = ["--root", "/tmp/none", "run", "--bundle", str(bundle.path), bundle.id]
    done = subprocess.run(
        stage.argv(*before, launcher, *words),
        check=False,
        capture_output=True,
        text=True,
        env=stage.environment,
    )
    assert done.returncode == 1
    assert done.stderr == f"{MESSAGE}\n"


@pytest.fixture(scope="session")
def podman(stage: Stack) -> Podman:
    return Podman(stage, user=USER)


def test_podman_without_root_warns_its_user(podman: Podman) -> None:
    done = podman.run("--rm", "--annotation=gpushare.io/memory=4GiB")
    assert done.returncode == 126
    assert MESSAGE in done.stderr


def test_podman_without_root_runs_a_container_without_a_request(podman: Podman) -> None:
    done = podman.run("--rm", command=(BUSYBOX, "echo", "here"))
    assert (done.returncode, done.stdout) == (0, "here\n"), done.stderr
    # An image's word alone asks for nothing.
    done = podman.run(
        "--rm", "--env=NVIDIA_VISIBLE_DEVICES=all", command=("/usr/bin/gpushare-probe",)
    )
    assert done.returncode == NO_DRIVER
