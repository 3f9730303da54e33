# SPDX-License-Identifier: Apache-2.0
"""kill -9 at every step of a container's life: no quota is lost, none is given twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare import client

from .container import GIB, Container, Place
from .cut import NOWHERE, Cut, Watched, sample, watched

#: More than half of the card: of two that have it, one was given what was promised to the other.
MOST = "100GiB"
_LAUNCHER_STEPS = 60  # more than it takes to become the low-level runtime
_RUNTIME_STEPS = 48
_HOOK_STEPS = {"runc": 60, "crun": 60}
_DAEMON_STEPS = 16
_END_STEPS = 6

Compiled = Callable[..., Path]


@pytest.fixture
def container(own: Place, runtime: str) -> Iterator[Container]:
    made = Container(own, runtime, quota={"memory": MOST}, args=("/bin/busybox", "sleep", "1000"))
    yield made
    made.remove()


def assert_consistent(container: Container) -> None:
    """Nothing is promised but to the one container, and to it once."""
    assert container.place.promised() in (0, 100 * GIB)
    assert [row["id"] for row in container.place.rows()] in ([], [container.id])


def assert_it_can_be_made(container: Container) -> None:
    """The same id again, and the whole of its life."""
    assert container.create() == 0
    row = container.row()
    assert row is not None
    assert row["state"] == "bound"
    assert container.call("start").returncode == 0
    container.through.wait_for(container.id, "running")
    container.remove()
    container.place.assert_empty()


def test_the_runtime_may_end_at_any_step(container: Container, compiled: Compiled) -> None:
    """The launcher's every step before it becomes runc or crun, and a sample of theirs."""
    whole = container.through
    program = Path(whole.program[-1])
    cut = Cut(compiled("cut"), program.with_name(f"cut-{program.name}"), program)
    parted = whole.instead(str(program.with_name(f"cut-{program.name}")))
    container.through = parted
    assert container.create() == 0
    steps = cut.steps
    container.through = whole
    container.remove()
    for step in sorted({*range(1, _LAUNCHER_STEPS), *sample(steps, _RUNTIME_STEPS)}):
        container.through = parted
        cut.at_step(step)
        container.create()
        assert_consistent(container)
        container.through = whole
        container.remove()
        container.place.assert_empty()
    assert_it_can_be_made(container)


def test_the_hook_may_end_at_any_step(
    container: Container, compiled: Compiled, runtime: str
) -> None:
    """createRuntime's way to the daemon and back, and poststop's at the container's end."""
    folder = container.stack.installation.libraries.resolve().parent / "bin"
    program = (folder / "gpushare-hook").rename(folder / "gpushare-hook.whole")
    cut = Cut(compiled("cut"), folder / "gpushare-hook", program)
    assert container.create() == 0
    steps = cut.steps
    container.remove()
    for step in sample(steps, min(steps, _HOOK_STEPS[runtime])):
        cut.at_step(step)
        assert container.create() != 0, "it started unbound"
        assert cut.was_cut
        assert_consistent(container)
        container.remove()
        container.place.assert_empty()
        cut.at_step(NOWHERE)
        assert container.create() == 0
        cut.at_step(step)
        container.remove()
        container.place.assert_empty()
    cut.at_step(NOWHERE)
    assert_it_can_be_made(container)


def daemon_pid(place: Place) -> int:
    assert place.stack.daemon is not None
    return place.stack.daemon.process.pid


def start_again(place: Place, cut: Watched) -> None:
    """Start the daemon anew, if it was ended."""
    if cut.was_cut:
        assert place.stack.daemon is not None
        place.stack.daemon.process.wait()
        place.stack.start_daemon()


@pytest.mark.parametrize("runtime", ["runc"], indirect=True)
def test_the_daemon_may_end_at_any_step(container: Container, compiled: Compiled) -> None:
    """From a request's arrival to the last of its answer, at a container's start and at its end."""
    place, tool = container.place, compiled("cut")
    with watched(tool, daemon_pid(place), NOWHERE) as start:
        assert container.create() == 0
    with watched(tool, daemon_pid(place), NOWHERE) as end:
        container.remove()
        place.assert_empty()
    for step in sample(start.steps, _DAEMON_STEPS):
        with watched(tool, daemon_pid(place), step) as cut:
            made = container.create() == 0
        start_again(place, cut)
        assert_consistent(container)
        if made:  # it was bound, and still is: nobody else is given its part
            assert place.promised() == 100 * GIB
            with pytest.raises(client.Refused, match="no card has room"):
                place.client.open({"memory": MOST}, name="other", pid=0, rootless=False)
        container.remove()
        place.assert_empty()
    for step in sample(end.steps, _END_STEPS):
        assert container.create() == 0
        with watched(tool, daemon_pid(place), step) as cut:
            container.remove()
        start_again(place, cut)
        place.assert_empty()
    assert_it_can_be_made(container)
