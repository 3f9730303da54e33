# SPDX-License-Identifier: Apache-2.0
"""What the words of one dialect come to."""

import pytest

from gpushare.quota.dialects import TABLES, Spoken, Where, combine

VCORE, VMEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
QCORE, QMEMORY = "tke.cloud.tencent.com/qgpu-core", "tke.cloud.tencent.com/qgpu-memory"


def said(where: Where, words: dict[str, str], *, strict: bool = True) -> Spoken:
    [spoken] = combine(TABLES.find(where, words), strict=strict)
    return spoken


def asked(where: Where, words: dict[str, str], *, strict: bool = True) -> dict[str, str]:
    spoken = said(where, words, strict=strict)
    assert not spoken.problems
    return {key: one.text for key, one in spoken.layer.items()}


def refusal(where: Where, words: dict[str, str], *, strict: bool = True) -> str:
    [problem] = said(where, words, strict=strict).problems
    return str(problem.error())


def test_a_unit_of_the_vendor_becomes_a_canonical_size() -> None:
    assert asked("limit", {VCORE: "20", VMEMORY: "30"}) == {"cores": "20", "memory": "7680MiB"}


def test_what_was_written_is_kept_beside_it() -> None:
    spoken = said("env", {"CUDA_DEVICE_MEMORY_LIMIT": "4096m"})
    assert spoken.layer["memory"].text == "4GiB"
    assert spoken.layer["memory"].shown == "4096m"
    assert str(spoken.layer["memory"].source) == "env CUDA_DEVICE_MEMORY_LIMIT"


def test_a_multiple_of_100_is_whole_cards() -> None:
    assert asked("limit", {QCORE: "200"}) == {"cores": "100", "count": "2"}


def test_a_number_between_cards_is_refused() -> None:
    assert refusal("limit", {VCORE: "150", VMEMORY: "4"}) == (
        'limit tencent.com/vcuda-core (Tencent vcuda): "150" is over one card and not N x 100: '
        "several cards are whole ones; write 100 or less, or 100 or 200"
    )


def test_the_vendors_own_step_is_refused_by_a_strict_node_only() -> None:
    words = {QCORE: "7", QMEMORY: "4"}
    assert "is not a multiple of 5; write e.g. 5" in refusal("limit", words)
    spoken = said("limit", words, strict=False)
    assert spoken.layer["cores"].value == 7
    assert (
        'limit tke.cloud.tencent.com/qgpu-core (Tencent qGPU) "7" is not a multiple of 5'
        in (spoken.notes[0])
    )


def test_an_amount_for_each_card_counts_them() -> None:
    words = {f"CUDA_DEVICE_MEMORY_LIMIT_{card}": "2g" for card in (0, 1)}
    assert asked("env", words) == {"memory": "2GiB", "count": "2"}


def test_amounts_that_differ_between_cards_are_the_least_or_refused() -> None:
    words = {"CUDA_DEVICE_MEMORY_LIMIT_0": "2g", "CUDA_DEVICE_MEMORY_LIMIT_1": "3g"}
    assert "gives each the same memory" in refusal("env", words)
    assert asked("env", words, strict=False) == {"memory": "2GiB", "count": "2"}


def test_a_word_that_only_says_how_asks_for_nothing() -> None:
    spoken = said("env", {"CUDA_TASK_PRIORITY": "nonsense"})
    assert (spoken.layer, spoken.problems) == ({}, ())


def test_a_value_that_says_nothing_is_as_if_it_were_not_there() -> None:
    assert said("env", {"CUDA_DEVICE_MEMORY_LIMIT": "0m"}).layer == {}


def test_what_a_vendor_gives_where_nothing_is_said() -> None:
    assert asked("env", {"CUDA_DEVICE_SM_LIMIT": "30"}) == {"cores": "30", "memory-percent": "100"}


@pytest.mark.parametrize("name", ["PATH", "CUDA_DEVICE_MEMORY_LIMIT_x", "tencent.com/other"])
def test_what_is_no_vendors_is_not_found(name: str) -> None:
    assert not TABLES.find("env", {name: "1"})
    assert not TABLES.find("limit", {name: "1"})
