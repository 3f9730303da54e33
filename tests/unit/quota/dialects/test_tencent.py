# SPDX-License-Identifier: Apache-2.0
"""qGPU, vcuda and elastic GPUs: the requests, and what their own products would refuse."""

import pytest

from gpushare.quota.dialects.tencent import POLICIES

from .requesting_container import Words, asked, note, refusal, said

CORE, MEMORY = "tke.cloud.tencent.com/qgpu-core", "tke.cloud.tencent.com/qgpu-memory"
GREEDY, CLASS = "tke.cloud.tencent.com/qgpu-core-greedy", "tke.cloud.tencent.com/app-class"
VCORE, VMEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
CEILING = "tencent.com/vcuda-core-limit"


def test_qgpu_memory_is_whole_gib() -> None:
    assert asked({"limit": {CORE: "30", MEMORY: "5"}}) == {"cores": "30", "memory": "5GiB"}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("1.5", "not a whole number of GiB. Write a whole number."),
        ("0", "must be greater than zero. Write 1 or more, or omit the key to request no GPU."),
        ("-1", "not a whole number of GiB. Write a whole number."),
        ("5Gi", "not a whole number of GiB. Write a whole number."),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_an_invalid_qgpu_memory_is_refused(text: str, rule: str, *, strict: bool) -> None:
    told = refusal({"limit": {CORE: "30", MEMORY: text}}, strict=strict)
    assert told == f"limit {MEMORY}={text} (Tencent qGPU): {rule}"


@pytest.mark.parametrize("core", ["5", "30", "95", "100"])
def test_qgpu_core_is_5_to_100_in_steps_of_5(core: str) -> None:
    words = {CORE: core} if core == "100" else {CORE: core, MEMORY: "1"}
    assert asked({"limit": words})["cores"] == core


@pytest.mark.parametrize(
    ("core", "rule"),
    [
        ("7", "not a multiple of 5. Write e.g. 5."),
        ("3", "below 5. Write 5 or more."),
        ("105", "more than one card but not N x 100"),
    ],
)
def test_another_qgpu_core_is_refused(core: str, rule: str) -> None:
    problems = said({"limit": {CORE: core, MEMORY: "1"}}).problems
    assert rule in str(problems[0].error)


@pytest.mark.parametrize(("core", "rule"), [("7", "multiple of 5"), ("32", "multiple of 5")])
def test_a_lenient_node_gives_qgpu_cores_between_its_steps(core: str, rule: str) -> None:
    words: Words = {"limit": {CORE: core, MEMORY: "1"}}
    assert asked(words, strict=False)["cores"] == core
    assert rule in note(words)


def test_qgpu_cores_over_one_card_are_whole_cards_everywhere() -> None:
    words: Words = {"limit": {CORE: "105", MEMORY: "1"}}
    assert "more than one card but not a number of whole cards" in refusal(words, strict=False)


@pytest.mark.parametrize(("core", "cards"), [("200", "2"), ("400", "4"), ("1600", "16")])
def test_n_x_100_qgpu_cores_are_n_whole_cards_without_memory(core: str, cards: str) -> None:
    assert asked({"limit": {CORE: core}}) == {"cores": "100", "count": cards}


def test_memory_beside_whole_qgpu_cards_is_too_much() -> None:
    words: Words = {"limit": {CORE: "200", MEMORY: "32"}}
    assert "must not be set for whole cards, which include all of it. Omit it." in refusal(words)
    assert f'{MEMORY} (Tencent qGPU) "32" must not be set for whole cards' in note(words)


@pytest.mark.parametrize(
    ("words", "missing", "fix"),
    [
        ({CORE: "30"}, "memory", MEMORY),
        ({MEMORY: "5"}, "cores", CORE),
        ({GREEDY: "30"}, "memory", MEMORY),
    ],
)
def test_a_part_of_a_qgpu_card_needs_cores_and_memory(
    words: dict[str, str], missing: str, fix: str
) -> None:
    assert refusal({"limit": words}).endswith(f"requires {missing}. Add {fix}.")


def test_a_lenient_node_gives_qgpu_memory_without_cores() -> None:
    assert asked({"limit": {MEMORY: "5"}}, strict=False) == {"memory": "5GiB"}


def test_an_online_pod_asks_for_memory_alone() -> None:
    words = {CLASS: "online"}
    assert asked({"limit": {MEMORY: "5"}, "annotation": words}) == {
        "memory": "5GiB",
        "class": "online",
    }
    told = refusal({"limit": {MEMORY: "5", CORE: "30"}, "annotation": words})
    assert "not allowed for an online pod. Omit it." in told


def test_an_offline_pods_greedy_cores_are_its_weight_in_the_remaining_compute() -> None:
    words: Words = {"limit": {MEMORY: "5", GREEDY: "40"}, "annotation": {CLASS: "offline"}}
    assert asked(words) == {
        "memory": "5GiB",
        "weight": "40",
        "class": "offline",
        "policy": "native-burst-share",
    }


def test_greedy_cores_are_of_one_card() -> None:
    words: Words = {"limit": {MEMORY: "5", GREEDY: "101"}, "annotation": {CLASS: "offline"}}
    assert "Write a whole number from 1 to 100" in refusal(words)
    offline: Words = {"limit": {CORE: "200"}, "annotation": {CLASS: "offline"}}
    assert "requires a single card, but 2 are requested. Request one card." in refusal(offline)


def test_greedy_cores_are_not_beside_cores() -> None:
    words: Words = {"limit": {MEMORY: "5", CORE: "30", GREEDY: "40"}}
    assert "conflicts with qgpu-core-greedy. Keep one of the two." in refusal(words)


def test_a_class_that_is_none_is_refused() -> None:
    words: Words = {"limit": {MEMORY: "5"}, "annotation": {CLASS: "Online"}}
    assert "=Online (Tencent qGPU): not a valid value. Did you mean online?" in refusal(words)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("best-effort", "best-effort"),
        ("be", "best-effort"),
        ("fixed-share", "fixed-share"),
        ("fs", "fixed-share"),
        ("burst-share", "burst-share"),
        ("bs", "burst-share"),
    ],
)
def test_all_spellings_of_qgpus_policies(text: str, policy: str) -> None:
    assert POLICIES.read(text) == policy


# --- vcuda ---


@pytest.mark.parametrize(("units", "size"), [("30", "7680MiB"), ("4", "1GiB"), ("1", "256MiB")])
def test_vcuda_memory_is_in_units_of_256_mib(units: str, size: str) -> None:
    assert asked({"limit": {VCORE: "20", VMEMORY: units}}) == {"cores": "20", "memory": size}


@pytest.mark.parametrize("core", ["1", "2", "20", "99"])
def test_vcuda_core_is_1_to_100(core: str) -> None:
    assert asked({"limit": {VCORE: core, VMEMORY: "1"}})["cores"] == core


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("core", ["150", "220", "101"])
def test_vcuda_core_between_cards_is_refused(core: str, *, strict: bool) -> None:
    assert "more than one card but not N x 100: several cards must be whole" in refusal(
        {"limit": {VCORE: core, VMEMORY: "1"}}, strict=strict
    )


@pytest.mark.parametrize(("core", "cards"), [("200", "2"), ("300", "3")])
def test_n_x_100_vcuda_cores_are_n_whole_cards(core: str, cards: str) -> None:
    assert asked({"limit": {VCORE: core}}) == {"cores": "100", "count": cards}


def test_100_vcuda_cores_are_one_whole_card() -> None:
    assert asked({"limit": {VCORE: "100"}}) == {"cores": "100"}


def test_no_vcuda_core_at_all_is_refused() -> None:
    assert "Write a whole number from 1 to 1600" in refusal({"limit": {VCORE: "0", VMEMORY: "1"}})


def test_a_part_of_a_vcuda_card_needs_memory() -> None:
    assert f"requires memory. Add {VMEMORY}." in refusal({"limit": {VCORE: "20"}})


def test_a_ceiling_above_vcuda_cores_is_put_down_to_them() -> None:
    words: Words = {"limit": {VCORE: "20", VMEMORY: "4"}, "annotation": {CEILING: "50"}}
    assert asked(words) == {"cores": "20", "memory": "1GiB"}
    assert note(words) == (
        f'annotation {CEILING} (Tencent vcuda) "50" was not applied: '
        f'limit {VCORE} (Tencent vcuda) "20" sets cores too'
    )


def test_a_ceiling_alone_reaches_a_runtime() -> None:
    spoken = said({"annotation": {CEILING: "50"}}, strict=False)
    assert {key: one.text for key, one in spoken.layer.items()} == {"cores": "50"}


# --- elastic GPUs ---


@pytest.mark.parametrize("domain", ["elasticgpu.com", "elasticgpu.io"])
def test_elastic_gpus_count_in_mib_and_cards(domain: str) -> None:
    core, memory = f"{domain}/gpu-core", f"{domain}/gpu-memory"
    assert asked({"limit": {memory: "256"}}) == {"memory": "256MiB"}
    assert asked({"limit": {core: "30", memory: "512"}}) == {"cores": "30", "memory": "512MiB"}
    assert asked({"limit": {core: "200"}}) == {"cores": "100", "count": "2"}
    assert "not N x 100" in refusal({"limit": {core: "150", memory: "1"}}, strict=False)


# --- the bookkeeping ---


@pytest.mark.parametrize(
    "name",
    [
        "tencent.com/predicate-time",
        "tencent.com/predicate-gpu-idx-0",
        "tencent.com/gpu-assigned",
        "tencent.com/vcuda-device",
        "elasticgpu.io/egpuc-train",
    ],
)
def test_keys_of_schedulers_request_nothing(name: str) -> None:
    spoken = said({"annotation": {name: "1"}})
    assert (spoken.layer, spoken.problems) == ({}, ())
    assert spoken.meant[name]
