# SPDX-License-Identifier: Apache-2.0
"""mGPU: the requests, and what VKE would refuse."""

import pytest

from gpushare.quota.dialects.volcengine import POLICIES

from .requesting_container import Words, asked, note, refusal, said

CORE, MEMORY = "vke.volcengine.com/mgpu-core", "vke.volcengine.com/mgpu-memory"
CARDS = "vke.volcengine.com/container-multiple-gpu"
POLICY = "vke.volcengine.com/mgpu-compute-policy"


def over_cards(cards: str, core: str, memory: str, **annotations: str) -> Words:
    return {
        "limit": {CORE: core, MEMORY: memory},
        "annotation": {CARDS: cards, **annotations},
    }


def test_a_part_of_a_card_is_percent_and_mib() -> None:
    words: Words = {"limit": {CORE: "30", MEMORY: "4096"}}
    assert asked(words) == {"cores": "30", "memory": "4GiB"}


@pytest.mark.parametrize(("core", "cores"), [("0.01", "1"), ("0.3", "30"), ("0.99", "99")])
def test_a_console_counts_cores_in_hundredths_of_a_card(core: str, cores: str) -> None:
    assert asked({"limit": {CORE: core, MEMORY: "4096"}})["cores"] == cores


@pytest.mark.parametrize("core", ["2.0", "200"])
def test_exclusive_cards_are_requested_without_memory(core: str) -> None:
    assert asked({"limit": {CORE: core}}) == {"cores": "100", "count": "2"}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("core", ["0.005", "1.234", "0.00", "-1", ".5", "3e1"])
def test_another_fraction_of_a_card_is_refused(core: str, *, strict: bool) -> None:
    problem = said({"limit": {CORE: core, MEMORY: "4096"}}, strict=strict).problems[0]
    assert problem.source is not None
    assert problem.source.name == CORE
    assert "write" in problem.error.fix


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("number", range(1, 9))
def test_a_whole_number_that_may_be_cards_is_never_silently_percent(
    number: int, *, strict: bool
) -> None:
    told = refusal({"limit": {CORE: str(number), MEMORY: "4096"}}, strict=strict)
    assert told.endswith(
        f"={number} (Volcengine mGPU): may be {number} percent of a card, and the number of cards. "
        f"Write 0.0{number} for percent, or {number}00 for cards."
    )
    part: Words = {"limit": {CORE: f"0.0{number}", MEMORY: "4096"}}
    assert asked(part, strict=strict)["cores"] == str(number)
    whole = asked({"limit": {CORE: f"{number}00"}}, strict=strict)
    assert (whole["cores"], whole.get("count", "1")) == ("100", str(number))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("core", ["120", "1.2", "250"])
def test_cores_over_one_card_are_n_x_100(core: str, *, strict: bool) -> None:
    told = refusal({"limit": {CORE: core, MEMORY: "4096"}}, strict=strict)
    assert "more than one card but not a number of whole cards" in told


@pytest.mark.parametrize("memory", ["256", "128"])
def test_a_card_gives_more_than_256_mib(memory: str) -> None:
    words: Words = {"limit": {CORE: "30", MEMORY: memory}}
    assert "Request more than 256MiB" in refusal(words)
    assert asked(words, strict=False)["memory"] == f"{memory}MiB"


def test_257_mib_are_enough_on_one_card() -> None:
    assert asked({"limit": {CORE: "30", MEMORY: "257"}})["memory"] == "257MiB"


def test_several_cards_give_more_than_a_gib_each() -> None:
    words = over_cards("2", "60", "2048")
    assert refusal(words).endswith(
        "=2048 (Volcengine mGPU): 1GiB on each of 2 cards, but must be more than 1GiB. "
        "Request more than 2GiB."
    )
    assert asked(words, strict=False) == {"cores": "30", "memory": "1GiB", "count": "2"}
    assert asked(over_cards("2", "60", "2050")) == {
        "cores": "30",
        "memory": "1025MiB",
        "count": "2",
    }


def test_memory_beside_whole_cards_is_too_much() -> None:
    words: Words = {"limit": {CORE: "200", MEMORY: "32768"}}
    assert "must not be set for whole cards, which include all of it. Omit it." in refusal(words)
    assert f'{MEMORY} (Volcengine mGPU) "32768" must not be set for whole cards' in note(words)


@pytest.mark.parametrize(
    ("limits", "missing", "fix"),
    [({CORE: "30"}, "memory", MEMORY), ({MEMORY: "512"}, "cores", CORE)],
)
def test_a_part_needs_cores_and_memory(limits: dict[str, str], missing: str, fix: str) -> None:
    assert f"requires {missing}. Add {fix}." in refusal({"limit": limits})


def test_cores_and_memory_are_of_all_cards_together() -> None:
    assert asked(over_cards("2", "60", "8192")) == {"cores": "30", "memory": "4GiB", "count": "2"}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("cards", "core", "memory", "rule"),
    [
        ("3", "130", "9216", "does not divide into 3 cards. Write a multiple of 3."),
        ("2", "60", "8191", "does not divide into 2 cards. Write 8190 or 8192."),
        ("2", "300", "8192", "more than one card but not a number of whole cards"),
    ],
)
def test_memory_that_does_not_divide_over_the_cards_is_refused(
    cards: str, core: str, memory: str, rule: str, *, strict: bool
) -> None:
    assert rule in refusal(over_cards(cards, core, memory), strict=strict)


def test_each_container_has_its_place_in_the_list() -> None:
    words = over_cards("2,0,4", "100", "8192")
    assert asked(words, at=0) == {"cores": "50", "memory": "4GiB", "count": "2"}
    assert asked(words, at=2) == {"cores": "25", "memory": "2GiB", "count": "4"}
    assert "0 for this container, which requests a GPU" in refusal(words, at=1)
    assert "but this is container 4 of its pod" in refusal(words, at=3)


def test_a_container_without_cards_is_left_alone() -> None:
    spoken = said({"annotation": {CARDS: "2,0"}}, at=1)
    assert (spoken.layer, spoken.problems) == ({}, ())


@pytest.mark.parametrize("cards", ["-1,2", "two", "", "2,,1", "17"])
def test_a_list_of_cards_that_is_none_is_refused(cards: str) -> None:
    assert CARDS in refusal(over_cards(cards, "60", "8192"))


def test_parts_of_nine_cards_are_too_many() -> None:
    words = over_cards("9", "90", "18432")
    assert "requests shares of more than 8 cards. Write 8 or less." in refusal(words)
    assert asked(words, strict=False)["count"] == "9"
    assert asked({"limit": {CORE: "900"}}) == {"cores": "100", "count": "9"}


@pytest.mark.parametrize("strict", [True, False])
def test_the_annotation_alone_is_refused_since_limits_reach_no_runtime(*, strict: bool) -> None:
    told = refusal({"annotation": {CARDS: "2"}}, strict=strict)
    assert "requires memory. Resource limits are not passed" in told


def test_where_the_containers_place_is_not_known_a_list_is_refused() -> None:
    told = refusal({"annotation": {CARDS: "2,1"}}, strict=False, at=None)
    assert "has 2 items, but the position of this container is unknown" in told


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("fixed-share", "fixed-share"),
        ("guaranteed-burst-share", "burst-share"),
        ("native-burst-share", "native-burst-share"),
    ],
)
def test_the_policies_have_names_of_their_own(text: str, policy: str) -> None:
    assert POLICIES.read(text) == policy
    words: Words = {"limit": {CORE: "30", MEMORY: "4096"}, "annotation": {POLICY: text}}
    assert asked(words)["policy"] == policy


def test_parts_of_several_cards_are_under_one_policy_only() -> None:
    words = over_cards("2", "60", "8192", **{POLICY: "fixed-share"})
    assert (
        "requires a single card, but shares of 2 are requested. Write native-burst-share."
        in refusal(words)
    )
    assert asked(words, strict=False)["policy"] == "fixed-share"
    assert asked(over_cards("2", "60", "8192", **{POLICY: "native-burst-share"}))["count"] == "2"


@pytest.mark.parametrize(
    "name", ["vke.volcengine.com/assumed", "vke.volcengine.com/gpu-index-container-train"]
)
def test_keys_of_the_scheduler_request_nothing(name: str) -> None:
    spoken = said({"annotation": {name: "1"}})
    assert (spoken.layer, spoken.problems) == ({}, ())
    assert spoken.meant[name]
