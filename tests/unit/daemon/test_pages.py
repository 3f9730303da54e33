# SPDX-License-Identifier: Apache-2.0
"""The pages that daemon and tenant share: layout, waking, other versions, tenants that lie."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpushare import abi
from gpushare.daemon.lifecycle.bind import bind
from gpushare.daemon.lifecycle.release import adopt_tenants, reconcile_tenants
from gpushare.daemon.operator.resize import NotResizable, set_quota
from gpushare.daemon.pages.status_page import StatusPage, TenantClaims, sum_claims
from gpushare.daemon.pages.tenants import CardGrant, GrantPage

from . import fakes, registered
from .fake_process import FakeProcess
from .fakes import GIB, MIB, FakeDaemon
from .operations import opened


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.fixture
def status(directory: int) -> Iterator[StatusPage]:
    made = StatusPage.make(directory)
    yield made
    made.close()


def register(
    status: StatusPage, number: int, pid: int, *, used: int = 0, contexts: int = 0
) -> None:
    """Write what a library writes into its record, and for card 0."""
    registered.register(status.fd, number, pid, 100 + pid, denied=3)
    registered.hold(status.fd, number, used, contexts=contexts)


def none_live(_pid: int, _starttime: int) -> bool:
    return False


def test_every_page_of_a_grant_that_is_written_later_has_memory_from_the_start(
    directory: int, tmp_path: Path
) -> None:
    GrantPage.make(directory, "0" * 16, [CardGrant("GPU-a", GIB, 0, 0)] * abi.MAX_CARDS)
    assert (tmp_path / "grant").stat().st_blocks * 512 >= abi.GRANT_BYTES


def test_a_grant_keeps_its_first_card_and_counts_its_generation_up(
    directory: int, tmp_path: Path
) -> None:
    grant = GrantPage.make(directory, "0" * 16, [CardGrant("GPU-a", 4 * GIB, 0, 0)])
    grant.set_uuid(0, "GPU-b")  # it is moved
    grant.set_memory(0, 6 * GIB)
    grant.publish()
    page = (tmp_path / "grant").read_bytes()
    assert page[abi.GRANT_HEADER_FIRST_UUID :].startswith(b"GPU-a\0")
    again = GrantPage.adopt(directory)
    assert (again.generation.value, again.card_count) == (2, 1)


def test_a_link_in_place_of_a_page_is_not_followed(directory: int, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(bytes(abi.GRANT_BYTES))
    (tmp_path / "grant").symlink_to("elsewhere")
    with pytest.raises(OSError, match="Too many levels"):
        GrantPage(directory)


def test_a_page_never_has_a_limit_below_its_quota(
    directory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even for a tenant that reads between two stores."""
    page = GrantPage.make(directory, "ab" * 8, [CardGrant("GPU-a", 2 * GIB, 0, 0)])
    word_of = page._card64
    found = []

    class Word:
        """A word of the page, which is read after each store."""

        def __init__(self, word: ctypes.c_uint64) -> None:
            self._word = word

        @property
        def value(self) -> int:
            return self._word.value

        @value.setter
        def value(self, value: int) -> None:
            self._word.value = value
            content = (tmp_path / "grant").read_bytes()[abi.grant_card_offset(0) :]
            fields = abi.GRANT_CARD_QUOTA_BYTES, abi.GRANT_CARD_LIMIT_BYTES
            found.append(tuple(struct.unpack_from("<Q", content, at)[0] for at in fields))

    monkeypatch.setattr(page, "_card64", lambda number, field: Word(word_of(number, field)))
    for quota, limit in ((4, 8), (1, 1), (3, 3), (2, 5)):
        page.set_memory(0, quota * GIB, limit * GIB)
        assert found[-1] == (quota * GIB, limit * GIB)
    assert len(found) == 8
    assert all(limit >= quota for quota, limit in found)


def test_memory_that_outlives_its_maker_counts_once_and_managed_memory_not_as_the_drivers() -> None:
    kinds = tuple(GIB if kind == abi.KIND_MANAGED else 0 for kind in range(abi.KINDS))
    managed = TenantClaims(held_bytes=3 * GIB, kinds=kinds)
    assert (managed.expected_bytes, managed.used_bytes(MIB)) == (2 * GIB, 3 * GIB + MIB)
    account = TenantClaims(held_bytes=GIB, exported_bytes=MIB, imported_bytes=3 * MIB)
    assert account.used_bytes(0) == GIB + 2 * MIB
    assert account.expected_bytes == GIB + 2 * MIB
    shared = TenantClaims(held_bytes=GIB, exported_bytes=3 * MIB, imported_bytes=3 * MIB)
    assert shared.used_bytes(0) == GIB


def test_a_dead_processs_memory_and_work_are_cleared_on_all_cards(status: StatusPage) -> None:
    left = abi.WORK.pack(7, 1, 2, 3, 4, 6, 5, 8, 9, 7)
    register(status, 0, 11, used=GIB, contexts=1)
    register(status, 1, 12, used=2 * GIB, contexts=1)
    for card in range(2):
        for number in range(2):
            os.pwrite(status.fd, left, abi.status_work_offset(card, number))
    claims = status.claims(2)
    assert status.reap(lambda pid, starttime: (pid, starttime) == (12, 112), 2) == 1
    (before, _) = sum_claims(claims, 2)
    assert (before.held_bytes, before.contexts) == (3 * GIB, 2)
    (account, _) = sum_claims(status.claims(2), 2)
    assert (account.held_bytes, account.contexts) == (2 * GIB, 1)
    assert os.pread(status.fd, abi.PROCESS_BYTES, abi.status_process_offset(0)) == bytes(32)
    for card in range(2):
        offset = abi.status_work_offset(card)
        found = os.pread(status.fd, 2 * abi.WORK_BYTES, offset)
        assert found == bytes(abi.WORK_BYTES) + left


@pytest.mark.parametrize("offset", [abi.status_process_offset(0), 0], ids=["its own", "the page's"])
def test_a_process_that_holds_a_lock_is_not_robbed_nor_waited_for(
    status: StatusPage, tmp_path: Path, offset: int
) -> None:
    """It is not seen (it left its cgroup), but it holds its record, or keeps the daemon out."""
    register(status, 0, 11, used=GIB)
    with (tmp_path / "status").open("r+b") as other:
        fcntl.fcntl(other, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, offset, 1, 0))
        assert status.reap(none_live, 1) == 0
        assert status.is_held() == (offset > 0)
    assert not status.is_held()
    assert status.reap(none_live, 1) == 1


CARDS: Final = 2


BORDERS: Final = (
    0,
    abi.STATUS_HEADER_BYTES,
    abi.STATUS_PROCESS_OFFSET,
    abi.STATUS_USAGE_OFFSET,
    abi.status_usage_offset(1),
    abi.status_usage_offset(CARDS),
    abi.STATUS_BYTES,
)

# Words where they mean something: near the header, the first records and the first elements.
words = st.sampled_from([0, 1, 2, 2**31, 2**32 - 1, 2**44, 2**63]) | st.integers(0, 2**64 - 1)


places = st.builds(
    lambda border, distance: max(0, border + 8 * distance),
    st.sampled_from(BORDERS),
    st.integers(min_value=-4, max_value=64),
)


writes = st.lists(st.tuples(places, words), max_size=40)


sizes = st.none() | st.builds(int.__add__, places, st.integers(0, 7))


@contextmanager
def page() -> Iterator[StatusPage]:
    with tempfile.TemporaryDirectory() as folder:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        status = StatusPage.make(directory)
        try:
            yield status
        finally:
            status.close()
            os.close(directory)


@settings(max_examples=100, deadline=None)
@given(writes=writes, size=sizes, high_water=st.integers(min_value=0, max_value=2**32 - 1))
@example(writes=[], size=abi.STATUS_PROCESS_OFFSET + 16, high_water=2**32 - 1)
def test_whatever_a_tenant_writes_is_only_a_claim(
    writes: list[tuple[int, int]], size: int | None, high_water: int
) -> None:
    with page() as status:
        os.pwrite(status.fd, struct.pack("<I", high_water), abi.STATUS_HEADER_HIGH_WATER)
        for place, word in writes:
            os.pwrite(status.fd, struct.pack("<Q", word), place)
        if size is not None:
            os.truncate(status.fd, size)
        claims = status.claims(CARDS)
        assert len(claims) <= abi.MAX_PROCESSES
        for account in sum_claims(claims, CARDS):
            assert account.used_bytes(0) <= 1 << 53
            assert max(account.contexts, account.pool_kept_bytes, *account.kinds) <= 1 << 53
            assert min(account.kinds) >= 0
            assert account.orphaned_bytes >= 0
            assert account.expected_bytes >= 0
            assert account.used_bytes(0) >= account.held_bytes
        for card in range(CARDS):
            waits = status.waits(card)
            assert len(waits) <= abi.MAX_PROCESSES
            assert all(0 <= one.throttled_ns <= 1 << 53 for one in waits.values())
        assert sum(claim.denied for claim in claims) <= 1 << 53
        reaped = status.reap(lambda _pid, _starttime: False, CARDS)
        assert reaped <= len(claims)
        if size is None:  # a page that is whole is clean then
            assert status.claims(CARDS) == ()


@contextmanager
def daemon(folder: Path) -> Iterator[FakeDaemon]:
    """The next daemon, which has found what there is."""
    with fakes.again(folder) as node:
        node.decide.run(lambda: adopt_tenants(node, node.freezer))
        yield node


@pytest.fixture
def tenant(tmp_path: Path, program: FakeProcess) -> str:
    """A bound tenant with 40 GiB and a burst limit of 60."""
    with fakes.node(tmp_path) as node:
        made = opened(node, memory="40GiB", memory_limit="60GiB", devices="0")
        entry = node.ledger.entries[made["key"]]
        node.decide.run(lambda: bind(entry.key, entry.id, program.pid, os.getpid(), node))
        return entry.key


def page_files(folder: Path, key: str) -> list[Path]:
    [grant] = (folder / "run" / "tenants" / key).rglob("grant")
    return [grant, grant.with_name("status")]


def write_version(folder: Path, key: str, version: int) -> None:
    for page in page_files(folder, key):
        with page.open("r+b") as file:
            file.seek(abi.GRANT_HEADER_ABI_VERSION)
            file.write(struct.pack("<I", version))


@pytest.mark.parametrize("version", [abi.ABI_VERSION - 1, abi.ABI_VERSION + 1])
def test_they_are_kept_as_they_are_until_a_daemon_knows_them(
    version: int, tenant: str, tmp_path: Path
) -> None:
    write_version(tmp_path, tenant, version)
    before = [page.read_bytes() for page in page_files(tmp_path, tenant)]
    with daemon(tmp_path) as node:
        assert node.ledger.entries[tenant].state == "bound"
        assert tenant not in node.tenants.pages
        # Burst memory that it may have is not taken back, and not allocated to others.
        assert node.accounts.capacities()[0].available_bytes == (140 - 60) * GIB
        opened(node, memory="80GiB", devices="0")
        node.limits.update()
        reconcile_tenants(node, node.freezer)
        with pytest.raises(
            NotResizable, match="of another version of gpushare; restart the container"
        ):
            set_quota(node.ledger.entries[tenant], {"memory": "10GiB"}, node)
    assert [page.read_bytes() for page in page_files(tmp_path, tenant)] == before
    write_version(tmp_path, tenant, abi.ABI_VERSION)
    with daemon(tmp_path) as node:
        assert node.tenants.pages[tenant].grant.memory_bytes(0) == 40 * GIB
        set_quota(node.ledger.entries[tenant], {"memory": "10GiB"}, node)
