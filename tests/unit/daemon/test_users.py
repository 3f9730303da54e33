# SPDX-License-Identifier: Apache-2.0
"""Whose a uid is: an account's, that of a range's owners, or one of the strangers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare.daemon.core.users import STRANGERS, HostUsers, Owners


class Sources:
    """Answers of sources beside the files, which come when the test lets them."""

    def __init__(self, **answers: str) -> None:
        self.answers = {int(uid[1:]): name for uid, name in answers.items()}
        self.asked: list[tuple[int, bool]] = []
        self.waiting: list[Callable[[], None]] = []

    def ask(self, uid: int, subids: bool) -> Owners:
        self.asked.append((uid, subids))
        return frozenset(filter(None, [self.answers.get(uid)]))

    def come(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    (tmp_path / "passwd").write_text(
        "root:x:0:0::/:\nann:x:1000:1000::/:\nbob:x:1001:1001::/:\nx\n"
    )
    (tmp_path / "subuid").write_text("ann:100000:65536\n1001:165536:65536\nbob:100008:8\nbad\n")
    return tmp_path


def users(etc: Path, sources: Sources | None = None) -> HostUsers:
    sources = sources or Sources()
    times = iter(range(10_000))
    return HostUsers(etc, sources.ask, sources.waiting.append, lambda: float(next(times)))


@pytest.mark.parametrize(
    ("uid", "owners"),
    [
        (0, {"root"}),
        (1000, {"ann"}),
        (100_000, {"ann"}),
        (165_535, {"ann"}),
        (165_536, {"bob"}),
        (100_008, {"ann", "bob"}),
        (7_000_000, STRANGERS),
    ],
)
def test_a_uid_is_its_accounts_or_its_owners(etc: Path, uid: int, owners: set[str]) -> None:
    assert users(etc).owners(uid) == owners


def test_ranges_and_strangers_are_one_user_each(etc: Path) -> None:
    host = users(etc)
    assert host.are_one(1000, 100_001)
    assert host.are_one(100_000, 165_535)
    assert host.are_one(1000, 100_008)
    assert host.are_one(1001, 100_008)
    assert host.are_one(5_000_000, 6_000_000)
    assert not host.are_one(1000, 1001)
    assert not host.are_one(1000, 5_000_000)


def test_files_are_read_again_when_they_change(etc: Path) -> None:
    host = users(etc)
    assert host.owners(1002) == STRANGERS
    (etc / "passwd").write_text("eve:x:1002:1002::/:\n")
    assert host.owners(1002) == {"eve"}
    (etc / "passwd").unlink()
    assert host.owners(1002) == STRANGERS


def test_other_sources_are_asked_seldom_and_not_waited_for(etc: Path) -> None:
    now, sources = [0.0], Sources()
    host = HostUsers(etc, sources.ask, sources.waiting.append, lambda: now[0])
    for _ in range(2):
        assert host.owners(5000) == STRANGERS
        sources.come()
    sources.answers[5000] = "zoe"
    assert host.owners(5000) == STRANGERS
    now[0] = 301.0  # it is no stranger for ever
    host.owners(5000)
    sources.come()
    assert host.owners(5000) == {"zoe"}
    host.owners(1000)
    sources.come()
    assert sources.asked == [(5000, False)] * 2
    (etc / "nsswitch.conf").write_text("passwd: files sss\nsubid: sss\n")
    sources.answers[100_001] = "zoe"
    host = users(etc, sources)
    assert host.owners(100_001) == {"ann"}
    sources.come()
    assert host.owners(100_001) == {"ann", "zoe"}
