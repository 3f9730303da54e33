# SPDX-License-Identifier: Apache-2.0
"""A plug-in of pytest: records the executed lines for the test that runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import coverage
import pytest

from tools.coverage.start import TEST_VARIABLE


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Name the test, without its parameters, to this process and to those that it starts."""
    with _recorded_for(item.nodeid.partition("[")[0]):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
    """Record what several tests share for none of them."""
    if fixturedef.scope == "function":
        return (yield)
    with _recorded_for(""):
        return (yield)


@contextmanager
def _recorded_for(name: str) -> Iterator[None]:
    before = os.environ.get(TEST_VARIABLE, "")
    _switch(name)
    try:
        yield
    finally:
        _switch(before)


def _switch(name: str) -> None:
    os.environ[TEST_VARIABLE] = name
    measuring = coverage.Coverage.current()
    if measuring:
        measuring.switch_context(name)
