# SPDX-License-Identifier: Apache-2.0
"""kill -9 at every step of a container's life: no quota is lost, none is given twice."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.low_level import LowLevelRuntime
from tests.system.waiting import wait_until

from .container import GIB, RuntimeContainer, RuntimeNamespace
from .cut import NOWHERE, Cut, sample

#: More than half of the card: of two that have it, one was given what was allocated to the other.
MOST = "100GiB"
_LAUNCHER_STEPS = 60  # more than it takes to become the low-level runtime
_RUNTIME_STEPS = 24
_HOOK_STEPS = 30

Compiled = Callable[..., Path]


@pytest.fixture
def container(own: RuntimeNamespace, runtime: str) -> Iterator[RuntimeContainer]:
    made = RuntimeContainer(
        own, runtime, quota={"memory": MOST}, args=("/bin/busybox", "sleep", "1000")
    )
    yield made
    made.remove()


def assert_consistent(container: RuntimeContainer) -> None:
    """Nothing is allocated but to the one container, and to it once."""
    assert container.place.allocated() in (0, 100 * GIB)
    assert [row["id"] for row in container.place.rows()] in ([], [container.id])


def assert_it_can_be_made(container: RuntimeContainer) -> None:
    """The same id again, and the whole of its life."""
    assert container.create() == 0
    row = container.row()
    assert row is not None
    assert row["state"] == "bound"
    assert container.call("start").returncode == 0
    container.through.wait_for(container.id, "running")
    container.remove()
    container.place.assert_empty()


BY_HOOK = pytest.mark.parametrize("binds", ["hook"])
BY_LAUNCHER = pytest.mark.parametrize("binds", ["launcher"])
EACH_RUNTIME = pytest.mark.parametrize("runtime", ["runc", "crun"])


def assert_none_runs_unbound(container: RuntimeContainer) -> None:
    """Start what is left of it: gpushared ends it, or has it bound.

    A `crun start` whose container is killed at the wrong moment waits for ever for its reader.
    """

    def is_bound_or_gone() -> bool:
        status = container.through.state(container.id).get("status")
        if start.poll() is None and status in {"creating", "created"}:
            return False
        row = container.row()
        is_bound = row is not None and row["state"] == "bound"
        return is_bound or status != "running"

    with subprocess.Popen(
        container.argv("start", container.id),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as start:
        try:
            wait_until(is_bound_or_gone)
        finally:
            start.kill()


def assert_bound_by_launcher(container: RuntimeContainer) -> None:
    """Its spec has no hook that binds it, and it is bound."""
    assert "createRuntime" not in container.read().get("hooks", {})
    row = container.row()
    assert row is not None
    assert row["state"] == "bound"


def launcher_to_cut(container: RuntimeContainer, compiled: Compiled) -> tuple[Cut, LowLevelRuntime]:
    """Return the launcher as a program that may be cut, and what runs a container through it."""
    program = Path(container.through.program[-1])
    at = program.with_name(f"cut-{program.name}")
    return Cut(compiled("cut"), at, program), container.through.instead(str(at))


@BY_LAUNCHER
def test_the_launcher_may_end_at_any_step(container: RuntimeContainer, compiled: Compiled) -> None:
    """Each of its own, from its first to its last beside a container that was created."""
    whole = container.through
    cut, parted = launcher_to_cut(container, compiled)
    container.through = parted
    assert container.create() == 0
    steps = cut.steps
    assert steps > _LAUNCHER_STEPS
    assert_bound_by_launcher(container)
    container.through = whole
    container.remove()
    for step in range(1, steps + 1):
        container.through = parted
        cut.at_step(step)
        container.create()
        assert_consistent(container)
        container.through = whole
        assert_none_runs_unbound(container)
        container.remove()
        container.place.assert_empty()
    assert_it_can_be_made(container)


@BY_LAUNCHER
@EACH_RUNTIME
def test_the_launchers_child_may_end_at_any_step(
    container: RuntimeContainer, compiled: Compiled
) -> None:
    """The low-level runtime alone, of which the launcher is the parent."""
    settings = Path(container.through.program[-1]).with_name("gpushare-runtime.conf")
    low_level = Path(
        dict(line.split(" = ") for line in settings.read_text().splitlines())["runtime"]
    )
    cut = Cut(compiled("cut"), settings.with_name("cut-low-level"), low_level)
    text = settings.read_text()
    parted = text.replace(str(low_level), str(settings.with_name("cut-low-level")))
    settings.write_text(parted)
    assert container.create() == 0
    steps = cut.steps
    assert_bound_by_launcher(container)
    for step in sample(steps, _RUNTIME_STEPS):
        settings.write_text(text)
        container.remove()
        container.place.assert_empty()
        settings.write_text(parted)
        cut.at_step(step)
        container.create()
        assert_consistent(container)
        settings.write_text(text)
        assert_none_runs_unbound(container)
    container.remove()
    assert_it_can_be_made(container)


@BY_HOOK
@EACH_RUNTIME
def test_the_hook_may_end_at_any_step(container: RuntimeContainer, compiled: Compiled) -> None:
    """Its way to the daemon and back."""
    folder = container.stack.installation.libraries.resolve().parent / "bin"
    program = (folder / "gpushare-hook").rename(folder / "gpushare-hook.whole")
    cut = Cut(compiled("cut"), folder / "gpushare-hook", program)
    assert container.create() == 0
    steps = cut.steps
    container.remove()
    for step in sample(steps, _HOOK_STEPS):
        cut.at_step(step)
        assert container.create() != 0, "it started unbound"
        assert cut.was_cut
        assert_consistent(container)
        container.remove()
        container.place.assert_empty()
    cut.at_step(NOWHERE)
    assert_it_can_be_made(container)
