# SPDX-License-Identifier: Apache-2.0
"""`gpushare top` in front of a daemon: what it shows is so, and what it changes is changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpushare.verify import ProbeTenant, spawn
from tests.emulator import TERM, Emulator
from tests.stack import Stack


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
    [card] = stack.shown("inspect", "train")["cards"]
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
