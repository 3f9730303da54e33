# SPDX-License-Identifier: Apache-2.0
"""What the words of one dialect come to."""

from typing import Final

import pytest

from gpushare.quota.dialects import TABLES, Dialect, Row, Spoken, Tables, Where, combine, units
from gpushare.quota.dialects.tencent import POLICIES

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
        "several cards are whole ones; write 100 or less, or 200"
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


# --- what no vendor of today needs all of: a table of the test's own ---

CARDS, PART, SWITCH, WHOLE = "x.y/cards", "PART", "SWITCH", "WHOLE"
ANY: Final = Dialect(
    "any",
    "Any",
    rows=(
        Row(CARDS, "annotation", "says", "", units.CARDS_BY_CONTAINER, "count"),
        Row("x.y/mem", "annotation", "asks", "", units.MIBS, "memory", total=True),
        Row("x.y/how", "annotation", "says", "", POLICIES, "policy"),
        Row("x.y/deny", "annotation", "says", "", units.NAMES, "deny"),
        Row("x.y/not-these", "annotation", "says", "", units.NAMES, "deny"),
        Row("x.y/allow", "annotation", "says", "", units.NAMES, "allow"),
        Row("x.y/only-these", "annotation", "says", "", units.NAMES, "allow"),
        Row(SWITCH, "env", "asks", "A switch.", units.SWITCH, beside="MEMORY"),
        Row("MEMORY", "env", "asks", "", units.BYTES, "memory", beside=SWITCH),
        Row(PART, "env", "asks", "", units.PARTS, "memory-percent", over=WHOLE),
        Row(WHOLE, "env", "asks", "", units.PARTS, beside=PART),
    ),
)
OTHER: Final = Dialect(
    "other", "Other", rows=(Row("x.y/how", "annotation", "says", "", POLICIES, "policy"),)
)


def spoken(
    words: dict[str, str], where: Where = "annotation", *, strict: bool = True, at: int | None = 0
) -> Spoken:
    [found] = combine(Tables([ANY]).find(where, words), strict=strict, position=at)
    return found


def problems(found: Spoken) -> list[str]:
    return [f"{one.rule}; {one.fix}" for one in found.problems]


def test_each_container_of_a_pod_has_its_place_in_a_list() -> None:
    words = {CARDS: "2,0,1", "x.y/mem": "1024"}
    assert {key: one.text for key, one in spoken(words).layer.items()} == {
        "count": "2",
        "memory": "512MiB",
    }
    assert spoken(words, at=2).layer["memory"].text == "1GiB"


def test_a_place_without_cards_asks_for_nothing_and_may_not_beside_a_request() -> None:
    assert (spoken({CARDS: "2,0"}, at=1).layer, spoken({CARDS: "2,0"}, at=1).problems) == ({}, ())
    words = {CARDS: "2,0", "x.y/mem": "1024"}
    assert problems(spoken(words, at=1)) == [
        "is 0 for this container, which asks for a GPU; write 1 or more"
    ]


@pytest.mark.parametrize(
    ("at", "rule"),
    [
        (2, "has 2 places, and this is container 3 of its pod"),
        (None, "has 2 places, and which is this container's is not known here"),
    ],
)
def test_a_container_without_a_place_in_the_list_is_refused(at: int | None, rule: str) -> None:
    [problem] = spoken({CARDS: "2,1", "x.y/mem": "1024"}, at=at, strict=False).problems
    assert problem.rule == rule


def test_all_that_two_words_deny_is_denied() -> None:
    words = {"x.y/mem": "1", "x.y/deny": "T4,V100", "x.y/not-these": "V100,GPU-1"}
    found = spoken(words)
    assert found.layer["deny"].value == ("T4", "V100", "GPU-1")
    assert found.meant["x.y/not-these"] == "deny, with x.y/deny"
    assert found.notes == ()


@pytest.mark.parametrize("first", ["x.y/allow", "x.y/only-these"])
def test_of_two_words_that_allow_the_one_with_cards_is_narrower(first: str) -> None:
    second = {"x.y/allow": "x.y/only-these", "x.y/only-these": "x.y/allow"}[first]
    found = spoken({"x.y/mem": "1", first: "A100", second: "GPU-1"})
    assert found.layer["allow"].value == ("GPU-1",)
    assert f'{first} (Any) "A100" was not taken' in found.notes[0]
    assert found.meant[first] == f"nothing: {second} says allow too"


def test_how_cores_are_held_says_nothing_where_none_are_asked() -> None:
    found = spoken({"x.y/mem": "1024", "x.y/how": "fs"})
    assert set(found.layer) == {"memory"}
    assert found.meant["x.y/how"] == "nothing: it says how cores are held, and none are asked"


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("word", "text"), [(SWITCH, "1"), (WHOLE, "15")])
def test_a_word_that_asks_for_nothing_alone_is_refused_alone(
    word: str, text: str, *, strict: bool
) -> None:
    other = {SWITCH: "MEMORY", WHOLE: PART}[word]
    assert problems(spoken({word: text}, "env", strict=strict)) == [
        f"asks for nothing without {other}; write {other} too"
    ]


def test_a_switch_that_is_off_asks_for_nothing() -> None:
    found = spoken({SWITCH: "0"}, "env")
    assert (found.layer, found.problems) == ({}, ())


@pytest.mark.parametrize("off", [{}, {SWITCH: "0"}])
def test_a_switch_that_the_vendor_wants_on_is_left_by_a_lenient_node(off: dict[str, str]) -> None:
    words = {"MEMORY": "1024", **off}
    assert problems(spoken(words, "env")) == [
        f"asks for nothing without {SWITCH}; write {SWITCH} too"
    ]
    found = spoken(words, "env", strict=False)
    assert found.layer["memory"].text == "1KiB"
    assert "as Any asks" in found.notes[0]


def test_a_name_of_several_dialects_is_the_word_of_who_asks() -> None:
    tables = Tables([OTHER, ANY])
    [found] = combine(
        tables.find("annotation", {"x.y/how": "be", "x.y/mem": "1"}), strict=True, position=0
    )
    assert (found.dialect.name, set(found.layer)) == ("any", {"memory", "policy"})


def test_a_name_of_several_dialects_where_none_asks_is_the_firsts() -> None:
    tables = Tables([OTHER, ANY])
    [found] = combine(tables.find("annotation", {"x.y/how": "be"}), strict=True, position=0)
    assert (found.dialect.name, found.layer) == ("other", {})
