# SPDX-License-Identifier: Apache-2.0
"""The ledger: what is in it survives the daemon, and nothing else does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.daemon.store.claim import ClaimedDevice, ClaimRecord
from gpushare.daemon.store.ledger import Ledger, LedgerError
from gpushare.daemon.store.record import CardAllocation, TenantRecord, record_from_json

from .fakes import GIB, entry


def opened(folder: Path, boot: str = "boot-1") -> Ledger:
    return Ledger(folder / "ledger", boot)


def reopened(ledger: Ledger, boot: str = "boot-1") -> Ledger:
    ledger.close()
    return Ledger(ledger.folder, boot)


def full_entry() -> TenantRecord:
    return TenantRecord(
        key="ab" * 8,
        state="reserved",
        id="c0ffee",
        name="train",
        engine="docker",
        bundle="/run/bundle",
        uid=7,
        policy="fixed-share",
        isolation="interposer",
        why="",
        quota={"memory": {"value": "4GiB", "source": "env"}},
        created=12.5,
        expires=99.5,
        notes=('env GPUSHARE_COUNT "4" was not applied',),
        namespace="team",
        sandbox="5a4d",
        container="train",
        labels={"team": "red"},
        allocations=(
            CardAllocation("GPU-0000", 4 * GIB, 30),
            CardAllocation("GPU-1000", 4 * GIB, 30),
        ),
    )


def test_a_claim_comes_back_as_it_was(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    devices = (ClaimedDevice("gpu", "GPU-0000", 4 * GIB, 30, "share-1", whole=True),)
    claim = ClaimRecord("0a-1B", "team", "gpu", ("p1", "p2"), devices, {"class": "online"})
    ledger.put_claim(claim)
    ledger.add(full_entry())
    again = reopened(ledger)
    assert again.claims == {"0a-1B": claim}
    assert again.entries == {full_entry().key: full_entry()}
    again.release_claim("0a-1B")
    again.release_claim("0a-1B")
    assert reopened(again).claims == {}


def test_a_record_of_an_earlier_version_is_of_no_pod_and_no_claim() -> None:
    document = full_entry().to_json()
    for name in ("pod", "pod_uid", "claim", "labels"):
        del document[name]
    assert record_from_json(document) == replace(full_entry(), labels={})
    del document["container"]
    with pytest.raises(ValueError, match="does not have the fields"):
        record_from_json(document)


def test_readers_keep_the_records_that_they_read(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    before = ledger.entries
    ledger.add(entry())
    assert not before
    with pytest.raises(TypeError):
        ledger.entries["x"] = entry()  # type: ignore[index]


def test_another_boot_finds_it_empty(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.add(full_entry())
    second = reopened(ledger, "boot-2")
    assert not second.entries
    assert not reopened(second, "boot-2").entries


@pytest.mark.parametrize(("memory", "limit"), [(0, None), (-1, None), (2 * GIB, GIB)])
def test_no_allocation_has_an_amount_that_cannot_be(memory: int, limit: int | None) -> None:
    with pytest.raises(ValueError, match="bytes of a card"):
        CardAllocation("GPU-0000", memory, memory_limit_bytes=limit)


def test_a_ledger_that_has_no_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("a file")
    with pytest.raises(LedgerError, match="gpushared needs this folder"):
        opened(tmp_path)


def test_each_daemon_has_the_next_number_of_this_boot(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    assert ledger.generation == 1
    ledger.confirm()
    ledger = reopened(ledger)
    assert ledger.generation == 2
    ledger.close()
    (ledger.folder / "about").write_bytes(b"damaged" * 1000)
    ledger = opened(tmp_path)
    assert ledger.generation == 3
    assert reopened(ledger, "boot-2").generation == 1
