# SPDX-License-Identifier: Apache-2.0
"""`gpushare top` in front of a daemon: what it shows is so, and what it changes is changed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from gpushare.verify import ProbeTenant, spawn
from tests.stack import Stack
from tests.unit.cli.top.emulator import TERM, Emulator

# Without rights, but for reading this checkout wherever it lies.
AS_NOBODY = (
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
)


@pytest.fixture
def train(stack: Stack) -> Iterator[ProbeTenant]:
    """A host process with 2 of its 4 GiB in use."""
    with spawn(stack.host(), "train", {"memory": "4GiB", "cores": "30"}) as tenant:
        tenant.start()
        assert tenant.ask(f"alloc {2 << 30}")["code"] == 0
        yield tenant


def top(stack: Stack, *words: str) -> Emulator:
    env = {**stack.environment, "LC_ALL": "C.UTF-8", "TERM": TERM}
    return Emulator([*stack.cli, "top", *words], env, columns=120)


def policy(stack: Stack) -> str:
    shown = subprocess.run(
        [*stack.cli, "inspect", "train", "--json"],
        check=True,
        capture_output=True,
        text=True,
        env=stack.environment,
    )
    [card] = json.loads(shown.stdout)["cards"]
    return f"{card['policy']} {card['cores']}"


@pytest.mark.usefixtures("train")
def test_a_container_comes_and_its_share_is_changed(stack: Stack) -> None:
    with top(stack, "--allow-changes", "--filter", "train") as screen:
        screen.until(lambda text: "gpushare-probe" in text and "fixed-share" in text)
        screen.press("down", "p", *"burst-share 40", "enter")
        screen.until(lambda text: "set train: policy burst-share cores 40? y/n" in text)
        assert policy(stack) == "fixed-share 30"
        screen.press("y")
        screen.until(lambda text: "burst-share" in text.splitlines()[4])
        assert policy(stack) == "burst-share 40"
        screen.press("q")
        assert screen.end() == 0


def test_a_container_that_ends_is_gone_from_the_screen(stack: Stack, train: ProbeTenant) -> None:
    with top(stack) as screen:
        screen.until(lambda text: "train" in text)
        train.close()
        screen.until(lambda text: "train" not in text)


@pytest.mark.usefixtures("train")
def test_without_root_it_shows_and_changes_nothing(stack: Stack) -> None:
    env = {**stack.environment, "LC_ALL": "C.UTF-8", "TERM": TERM}
    with Emulator([*AS_NOBODY, *stack.cli, "top", "--allow-changes"], env, columns=120) as screen:
        screen.until(lambda text: "gpushare-probe" in text)
        screen.press("end", "k", "enter", "y")
        screen.until(lambda text: "failed: Operation not permitted" in text)
        screen.press("p", *"50", "enter", "y")
        screen.until(lambda text: "failed" in text and "root" in text)
    assert policy(stack) == "fixed-share 30"
