# SPDX-License-Identifier: Apache-2.0
"""A status page that says anything: what the daemon makes of it."""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpushare import abi
from gpushare.daemon.pages.status_page import StatusPage, sum_claims

CARDS: Final = 2
BORDERS: Final = (
    *(0, abi.STATUS_HEADER_BYTES, abi.STATUS_PROCESS_OFFSET, abi.STATUS_USAGE_OFFSET),
    *(abi.status_usage_offset(1), abi.status_usage_offset(CARDS), abi.STATUS_BYTES),
)

# Words where they mean something: near the header, the first records and the first elements.
words = st.one_of(
    st.sampled_from([0, 1, 2, 2**31, 2**32 - 1, 2**44, 2**63, 2**64 - 1]),
    st.integers(min_value=0, max_value=2**64 - 1),
)
places = st.builds(
    lambda border, distance: max(0, border + 8 * distance),
    st.sampled_from(BORDERS),
    st.integers(min_value=-4, max_value=64),
)
writes = st.lists(st.tuples(places, words), max_size=40)
sizes = st.one_of(
    st.none(),
    st.builds(
        lambda border, more: max(0, border + more),
        st.sampled_from(BORDERS),
        st.integers(min_value=-9, max_value=9),
    ),
)


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
