# SPDX-License-Identifier: Apache-2.0
"""Tests that only compute: the same in every run, they judge no time and leave nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.oci.rootfs import Rootfs

from . import purity
from .oci.examples import opened

purity.watch()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of an image."""
    path = tmp_path / "rootfs"
    path.mkdir()
    return path


@pytest.fixture
def rootfs(root: Path) -> Iterator[Rootfs]:
    with opened(root) as rootfs:
        yield rootfs


def _pure() -> Iterator[None]:
    with purity.recorded() as found:
        result = yield
    if found:
        pytest.fail("not pure (CONTRIBUTING.md):\n" + "\n".join(found), pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Fail a test whose fixtures start something."""
    return (yield from _pure())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Fail a test that starts something or waits."""
    return (yield from _pure())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """Fail a test that starts something at its end. The last one ends what all others share."""
    return (yield from _pure()) if nextitem else (yield)
