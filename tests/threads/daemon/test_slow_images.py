# SPDX-License-Identifier: Apache-2.0
"""create: images and file systems that are slow, or never answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.daemon.lifecycle import create, driver_files
from tests.unit.daemon import fakes
from tests.unit.daemon.bundles import BundleToCreate
from tests.unit.daemon.fakes import FakeDaemon
from tests.unit.daemon.test_slow_images import SHARE


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path) as made:
        yield made


def test_an_image_that_does_not_answer_delays_no_other_container(
    node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = BundleToCreate(tmp_path / "slow", SHARE, identity="slow")
    other = BundleToCreate(tmp_path / "other", SHARE, identity="other")
    reads, answers = threading.Event(), threading.Event()
    choose = driver_files.choose_files

    def hang(*arguments: Any) -> Any:
        if arguments[2].id == "slow":
            reads.set()
            answers.wait(60)
        return choose(*arguments)

    monkeypatch.setattr(driver_files, "choose_files", hang)
    done = threading.Event()

    def run() -> None:
        slow.create(node)
        done.set()

    node.creates.submit(run)
    assert reads.wait(60)
    assert other.create(node)["mode"] == "shared"
    node.decide.run(lambda: None)  # nor does it keep the decide thread
    answers.set()
    assert done.wait(60)
    assert {record.id for record in node.ledger.entries.values()} == {"slow", "other"}


def test_a_container_whose_earlier_create_hangs_is_refused_in_time(
    node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = BundleToCreate(tmp_path / "b", SHARE)
    reads, answers = threading.Event(), threading.Event()

    def hang(*_: Any) -> Any:
        reads.set()
        answers.wait(60)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(driver_files, "choose_files", hang)

    def run() -> None:
        with pytest.raises(OSError, match="Input/output"):
            container.create(node)

    node.creates.submit(run)
    assert reads.wait(60)
    with container.bundle() as bundle, pytest.raises(create.CreateAbandoned):
        create.create(replace(bundle, is_abandoned=lambda: True), node)
    answers.set()
