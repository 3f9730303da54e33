# SPDX-License-Identifier: Apache-2.0
"""What the words of one dialect come to."""

from typing import Final

import pytest

from gpushare.quota.dialects import units
from gpushare.quota.dialects.clouds import POLICIES
from gpushare.quota.dialects.parse import DialectRequest, Tables, combine
from gpushare.quota.dialects.vendor_key import Dialect, KeyLocation, VendorKey

# --- what no vendor of today needs all of: a table of the test's own ---

CARDS, PART, SWITCH, WHOLE = "x.y/cards", "PART", "SWITCH", "WHOLE"
ANY: Final = Dialect(
    "any",
    "Any",
    rows=(
        VendorKey(CARDS, "", units.CARDS_BY_CONTAINER, "count", where="annotation", role="option"),
        VendorKey(
            "x.y/mem",
            "",
            units.MIBS,
            "memory",
            where="annotation",
            role="request",
            summed=True,
        ),
        VendorKey("x.y/how", "", POLICIES, "policy", where="annotation", role="option"),
        VendorKey("x.y/deny", "", units.NAMES, "deny", where="annotation", role="option"),
        VendorKey("x.y/not-these", "", units.NAMES, "deny", where="annotation", role="option"),
        VendorKey("x.y/allow", "", units.NAMES, "allow", where="annotation", role="option"),
        VendorKey("x.y/only-these", "", units.NAMES, "allow", where="annotation", role="option"),
        VendorKey(
            SWITCH, "A switch.", units.SWITCH, where="env", role="request", requires="MEMORY"
        ),
        VendorKey(
            "MEMORY", "", units.BYTES, "memory", where="env", role="request", requires=SWITCH
        ),
        VendorKey(
            PART, "", units.PARTS, "memory-percent", where="env", role="request", fraction_of=WHOLE
        ),
        VendorKey(WHOLE, "", units.PARTS, where="env", role="request", requires=PART),
    ),
)
OTHER: Final = Dialect(
    "other",
    "Other",
    rows=(VendorKey("x.y/how", "", POLICIES, "policy", where="annotation", role="option"),),
)


def spoken(
    words: dict[str, str],
    where: KeyLocation = "annotation",
    *,
    strict: bool = True,
    at: int | None = 0,
) -> DialectRequest:
    [found] = combine(Tables([ANY]).find(where, words), strict=strict, position=at)
    return found


def problems(found: DialectRequest) -> list[str]:
    return [f"{one.error.rule}; {one.error.fix}" for one in found.problems]


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
        "is 0 for this container, which requests a GPU; write 1 or more"
    ]


@pytest.mark.parametrize(
    ("at", "rule"),
    [
        (2, "has 2 items, but this is container 3 of its pod"),
        (None, "has 2 items, but the position of this container is unknown"),
    ],
)
def test_a_container_without_a_place_in_the_list_is_refused(at: int | None, rule: str) -> None:
    [problem] = spoken({CARDS: "2,1", "x.y/mem": "1024"}, at=at, strict=False).problems
    assert problem.error.rule == rule


def test_denials_of_two_keys_add_up() -> None:
    words = {"x.y/mem": "1", "x.y/deny": "T4,V100", "x.y/not-these": "V100,GPU-1"}
    found = spoken(words)
    assert found.layer["deny"].value == ("T4", "V100", "GPU-1")
    assert found.meant["x.y/not-these"] == "deny, with x.y/deny"
    assert found.notes == ()


@pytest.mark.parametrize("first", ["x.y/allow", "x.y/only-these"])
def test_of_two_allowing_keys_the_one_with_cards_is_narrower(first: str) -> None:
    second = {"x.y/allow": "x.y/only-these", "x.y/only-these": "x.y/allow"}[first]
    found = spoken({"x.y/mem": "1", first: "A100", second: "GPU-1"})
    assert found.layer["allow"].value == ("GPU-1",)
    assert f'{first} (Any) "A100" was not applied' in found.notes[0]
    assert found.meant[first] == f"nothing: {second} sets allow too"


def test_the_way_to_enforce_cores_matters_only_if_cores_are_requested() -> None:
    found = spoken({"x.y/mem": "1024", "x.y/how": "fs"})
    assert set(found.layer) == {"memory"}
    assert found.meant["x.y/how"] == "nothing: it is a policy for cores, and none are requested"


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("word", "text"), [(SWITCH, "1"), (WHOLE, "15")])
def test_a_modifier_alone_is_refused(word: str, text: str, *, strict: bool) -> None:
    other = {SWITCH: "MEMORY", WHOLE: PART}[word]
    assert problems(spoken({word: text}, "env", strict=strict)) == [
        f"has no effect without {other}; write {other} too"
    ]


def test_a_switch_that_is_off_asks_for_nothing() -> None:
    found = spoken({SWITCH: "0"}, "env")
    assert (found.layer, found.problems) == ({}, ())


@pytest.mark.parametrize("off", [{}, {SWITCH: "0"}])
def test_a_switch_that_the_vendor_wants_on_is_left_by_a_lenient_node(off: dict[str, str]) -> None:
    words = {"MEMORY": "1024", **off}
    assert problems(spoken(words, "env")) == [f"has no effect without {SWITCH}; write {SWITCH} too"]
    found = spoken(words, "env", strict=False)
    assert found.layer["memory"].text == "1KiB"
    assert "as Any requires" in found.notes[0]


def test_a_name_of_several_dialects_belongs_to_the_requesting_one() -> None:
    tables = Tables([OTHER, ANY])
    [found] = combine(
        tables.find("annotation", {"x.y/how": "be", "x.y/mem": "1"}), strict=True, position=0
    )
    assert (found.dialect.name, set(found.layer)) == ("any", {"memory", "policy"})
