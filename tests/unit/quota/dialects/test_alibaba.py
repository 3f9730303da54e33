# SPDX-License-Identifier: Apache-2.0
"""ACK, cGPU and eGPU: the requests, and what their own products would refuse."""

import pytest

from gpushare.quota.dialects.alibaba import ALIBABA

from .requesting_container import Words, asked, note, refusal, said

MEM, CORE = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"
COUNT, CARDS = "aliyun.com/gpu-count", "aliyun.com/gpu"
PART, WHOLE = "ALIYUN_COM_GPU_MEM_CONTAINER", "ALIYUN_COM_GPU_MEM_DEV"
THESE = "ALIYUN_COM_GPU_VISIBLE_DEVICES"
ON, BYTES, UTIL = "AMP_VGPU_ENABLE", "GPU_MEM_PER_DEVICE", "GPU_UTIL_PER_DEVICE"


def over_cards(memory: str, cards: str, **limits: str) -> Words:
    return {"limit": {MEM: memory, **limits}, "label": {COUNT: cards}}


def test_gpu_mem_is_whole_gib() -> None:
    assert asked({"limit": {MEM: "4"}}) == {"memory": "4GiB"}
    assert "not a whole number of GiB" in refusal({"limit": {MEM: "5.5"}})


@pytest.mark.parametrize(("memory", "cards", "each"), [("8", "2", "4GiB"), ("8", "4", "2GiB")])
def test_gpu_mem_is_divided_by_gpu_count(memory: str, cards: str, each: str) -> None:
    assert asked(over_cards(memory, cards)) == {"memory": each, "count": cards}


@pytest.mark.parametrize("strict", [True, False])
def test_gpu_mem_that_does_not_divide_is_refused(*, strict: bool) -> None:
    assert refusal(over_cards("7", "2"), strict=strict) == (
        f"limit {MEM}=7 (Alibaba ACK and cGPU): does not divide into 2 cards. Write 6 or 8."
    )


def test_less_gpu_mem_than_cards_is_refused() -> None:
    assert "does not divide into 4 cards. Write 4 or 8." in refusal(over_cards("2", "4"))


@pytest.mark.parametrize("cards", ["0", "17", "two", "1.5"])
def test_a_gpu_count_that_is_none_is_refused(cards: str) -> None:
    assert "Write a whole number" in refusal(over_cards("8", cards))


def test_a_gpu_count_alone_asks_for_nothing() -> None:
    assert said({"label": {COUNT: "2"}}).layer == {}


@pytest.mark.parametrize("core", ["5", "20", "95"])
def test_cores_are_in_steps_of_5(core: str) -> None:
    assert asked({"limit": {MEM: "4", CORE: core}}) == {"memory": "4GiB", "cores": core}


def test_cores_between_the_steps_are_for_a_lenient_node() -> None:
    words: Words = {"limit": {MEM: "4", CORE: "2"}}
    assert "not a multiple of 5. Write e.g. 5." in refusal(words)
    assert asked(words, strict=False)["cores"] == "2"


def test_cores_need_memory() -> None:
    assert f"requires memory. Request memory too: {MEM}." in refusal({"limit": {CORE: "20"}})


def test_several_cards_share_compute_on_ack_and_may_have_a_part_of_it_here() -> None:
    words = over_cards("8", "2", **{CORE: "20"})
    assert "requires a single card, but 2 are requested" in refusal(words)
    assert asked(words, strict=False) == {"memory": "4GiB", "count": "2", "cores": "20"}
    assert "requires a single card, but 2 are requested, as Alibaba ACK and cGPU requires" in note(
        words
    )


def test_cards_of_topology_nodes_are_whole() -> None:
    assert asked({"limit": {CARDS: "2"}}) == {"count": "2"}


# --- cGPU's variables ---


@pytest.mark.parametrize(
    ("part", "whole", "percent"),
    [
        ("1", "4", "25"),
        ("15", "15", "100"),
        ("4", "15", "80/3"),
        ("1", "140", "5/7"),
        ("8", "22", "400/11"),
    ],
)
def test_memory_is_a_part_of_the_card(part: str, whole: str, percent: str) -> None:
    assert asked({"env": {PART: part, WHOLE: whole}}) == {"memory-percent": percent}


@pytest.mark.parametrize(
    ("env", "rule"),
    [
        ({PART: "3"}, f"a fraction of {WHOLE}, which is not set. Write {WHOLE} too."),
        ({WHOLE: "15"}, f"has no effect without {PART}. Write {PART} too."),
        ({PART: "16", WHOLE: "15"}, f"exceeds {WHOLE}, 15. Write 15 or less."),
        ({PART: "0", WHOLE: "15"}, "not a whole number"),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_a_part_of_no_card_is_refused(env: dict[str, str], rule: str, *, strict: bool) -> None:
    assert rule in refusal({"env": env}, strict=strict)


@pytest.mark.parametrize("unit", ["GiB", "GB"])
def test_the_unit_of_both_does_not_matter(unit: str) -> None:
    env = {PART: "3", WHOLE: "12", "ALIYUN_COM_GPU_MEM_UNIT": unit}
    assert asked({"env": env}) == {"memory-percent": "25"}


def test_the_part_is_of_each_card() -> None:
    env = {PART: "3", WHOLE: "12", THESE: "0,GPU-4f1c"}
    assert asked({"env": env}) == {"memory-percent": "25", "devices": "0,GPU-4f1c"}


def test_cards_without_memory_are_no_share_to_cgpu_and_whole_here() -> None:
    words: Words = {"env": {THESE: "0,1"}}
    assert f"requires memory. Write {PART} and {WHOLE}." in refusal(words)
    assert asked(words, strict=False) == {"devices": "0,1"}


def test_cards_that_acks_scheduler_chose_are_taken() -> None:
    env = {PART: "2", WHOLE: "10", "NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-2"}
    assert asked({"env": env}) == {"memory-percent": "20", "devices": "GPU-1,GPU-2"}


def test_an_images_all_is_no_choice_of_cards() -> None:
    env = {PART: "2", WHOLE: "10", "NVIDIA_VISIBLE_DEVICES": "all"}
    assert asked({"env": env}) == {"memory-percent": "20"}


@pytest.mark.parametrize("shared_first", [True, False])
def test_of_shared_and_exclusive_cards_in_one_container_shared_ones_are_used(
    *, shared_first: bool
) -> None:
    names = [(THESE, "2"), ("NVIDIA_VISIBLE_DEVICES", "0,1")]
    env = dict(names if shared_first else reversed(names)) | {PART: "1", WHOLE: "4"}
    spoken = said({"env": env})
    assert spoken.layer["devices"].value == ("2",)
    assert 'NVIDIA_VISIBLE_DEVICES (Alibaba ACK and cGPU) "0,1" was not applied' in spoken.notes[0]


def test_a_weight_turns_on_the_policy_by_weight() -> None:
    env = {PART: "1", WHOLE: "4", "ALIYUN_COM_GPU_SCHD_WEIGHT": "3"}
    assert asked({"env": env}) == {
        "memory-percent": "25",
        "weight": "3",
        "policy": "native-burst-share",
    }


@pytest.mark.parametrize(("text", "class_"), [("1", "online"), ("0", "offline")])
def test_high_priority_is_the_class_online(text: str, class_: str) -> None:
    env = {PART: "1", WHOLE: "4", "ALIYUN_COM_GPU_HIGH_PRIO": text}
    assert asked({"env": env})["class"] == class_


def test_a_container_does_not_switch_its_own_quota_off() -> None:
    spoken = said({"env": {PART: "1", WHOLE: "4", "CGPU_DISABLE": "true"}})
    assert spoken.layer["memory-percent"].value == 25
    assert "the quota stays in effect" in spoken.meant["CGPU_DISABLE"]


# --- eGPU ---


@pytest.mark.parametrize(
    ("text", "size"), [("2000000001", "2000000001B"), ("4294967296", "4GiB"), ("1", "1B")]
)
def test_egpus_memory_is_in_bytes_of_each_card(text: str, size: str) -> None:
    env = {ON: "1", BYTES: text, UTIL: "50", "NVIDIA_VISIBLE_DEVICES": "1,3"}
    assert asked({"env": env}) == {"memory": size, "cores": "50", "devices": "1,3"}


@pytest.mark.parametrize("strict", [True, False])
def test_egpu_without_memory_is_refused(*, strict: bool) -> None:
    told = refusal({"env": {ON: "1"}}, strict=strict)
    assert told.endswith(
        f"=1 (Alibaba PAI eGPU): has no effect without {BYTES}. Write {BYTES} too."
    )


@pytest.mark.parametrize("off", [{}, {ON: "0"}])
def test_egpu_that_is_off_is_left_by_a_lenient_node(off: dict[str, str]) -> None:
    words: Words = {"env": {BYTES: "4294967296", **off}}
    assert f"has no effect without {ON}. Write {ON} too." in refusal(words)
    assert asked(words, strict=False) == {"memory": "4GiB"}


def test_memory_that_egpu_reserves_belongs_to_the_program() -> None:
    env = {ON: "1", BYTES: "4294967296", "ALIYUN_COM_GPU_MEM_RESERVED": "10"}
    assert asked({"env": env}) == {"memory": "4GiB"}


def test_compute_beside_cgpus_memory_is_cgpus() -> None:
    spoken = said({"env": {PART: "1", WHOLE: "4", UTIL: "30"}})
    assert spoken.dialect is ALIBABA
    assert spoken.layer["cores"].value == 30


# --- the bookkeeping ---


@pytest.mark.parametrize("name", ["IDX", "POD", "ASSIGNED", "ASSUME_TIME", "ASSIGN_TIME"])
@pytest.mark.parametrize("where", ["annotation", "env"])
def test_keys_of_the_scheduler_request_nothing(name: str, where: str) -> None:
    full = f"ALIYUN_COM_GPU_MEM_{name}"
    spoken = said({"env": {full: "1"}} if where == "env" else {"annotation": {full: "1"}})
    assert (spoken.layer, spoken.problems) == ({}, ())
    assert spoken.meant[full]
