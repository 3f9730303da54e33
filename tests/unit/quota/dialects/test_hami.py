# SPDX-License-Identifier: Apache-2.0
"""HAMi, and Volcano's vGPU, which is HAMi behind another scheduler."""

import pytest

from .requesting_container import Words, asked, note, refusal, said

MEMORY, CORES = "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT"
POLICY, THESE = "GPU_CORE_UTILIZATION_POLICY", "NVIDIA_VISIBLE_DEVICES"
#: The names of limits: cards, memory, memory in percent, cores.
LIMITS = (
    (
        "nvidia.com/gpu",
        "nvidia.com/gpumem",
        "nvidia.com/gpumem-percentage",
        "nvidia.com/gpucores",
    ),
    (
        "volcano.sh/vgpu-number",
        "volcano.sh/vgpu-memory",
        "volcano.sh/vgpu-memory-percentage",
        "volcano.sh/vgpu-cores",
    ),
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1g", "1GiB"),
        ("1G", "1GiB"),
        ("1024m", "1GiB"),
        ("1048576k", "1GiB"),
        ("1073741824", "1GiB"),
        ("1m", "1MiB"),
        ("4096m", "4GiB"),
    ],
)
def test_a_memory_limit_is_binary_whatever_its_letter(text: str, size: str) -> None:
    assert asked({"env": {MEMORY: text}}) == {"memory": size}
    assert asked({"env": {f"{MEMORY}_0": text}}) == {"memory": size}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("text", ["4Gi", "4gb", "1.5g", "-1g", "g", "", "0x10"])
def test_another_memory_limit_is_refused(text: str, *, strict: bool) -> None:
    told = refusal({"env": {MEMORY: text}}, strict=strict)
    shown = text or '""'
    assert told == f"env {MEMORY}={shown} (HAMi): not a size. Write e.g. 4g, 4096m or 4194304k."


@pytest.mark.parametrize("text", ["0m", "0", "0g"])
def test_a_memory_limit_of_nothing_is_no_limit(text: str) -> None:
    spoken = said({"env": {MEMORY: text}})
    assert (spoken.layer, spoken.problems) == ({}, ())
    assert asked({"env": {MEMORY: text, CORES: "30"}}) == {"cores": "30", "memory-percent": "100"}


def test_a_mib_and_two_percent_are_kept_as_they_are() -> None:
    assert asked({"env": {MEMORY: "1m", CORES: "2"}}) == {"memory": "1MiB", "cores": "2"}


def test_variables_of_the_plugin_for_two_cards_are_read() -> None:
    env = {
        f"{MEMORY}_0": "4096m",
        f"{MEMORY}_1": "4096m",
        CORES: "30",
        THESE: "GPU-1,GPU-2",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/cache.cache",
    }
    assert asked({"env": env}) == {
        "memory": "4GiB",
        "count": "2",
        "cores": "30",
        "devices": "GPU-1,GPU-2",
    }


def test_the_name_of_alaudas_build_is_a_number_of_cards() -> None:
    alone: Words = {"limit": {"nvidia.com/gpualloc": "2"}}
    assert asked(alone) == {"count": "2", "memory-percent": "100"}
    memory = {"nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "50"}
    assert asked({"limit": {**alone["limit"], **memory}}) == {
        "count": "2",
        "memory": "4GiB",
        "cores": "50",
    }


@pytest.mark.parametrize("text", ["all", "none", "void", ""])
def test_an_image_that_names_all_cards_chooses_none(text: str) -> None:
    assert asked({"env": {MEMORY: "1g", THESE: text}}) == {"memory": "1GiB"}


@pytest.mark.parametrize("text", ["101", "-1", "30%", "0.3"])
def test_cores_that_are_no_percentage_are_refused(text: str) -> None:
    assert "Write a whole number from 1 to 100" in refusal({"env": {MEMORY: "1g", CORES: text}})


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("force", "fixed-share"),
        ("FORCE", "fixed-share"),
        ("default", "burst-share"),
        ("disable", "best-effort"),
    ],
)
def test_hamis_policies(text: str, policy: str) -> None:
    assert asked({"env": {MEMORY: "1g", CORES: "30", POLICY: text}})["policy"] == policy


def test_a_policy_without_cores_has_nothing_to_hold() -> None:
    assert asked({"env": {MEMORY: "1g", POLICY: "force"}}) == {"memory": "1GiB"}


@pytest.mark.parametrize(("text", "priority"), [("0", None), ("1", "6")])
@pytest.mark.parametrize("name", ["CUDA_TASK_PRIORITY", "nvidia.com/priority"])
def test_a_low_priority_is_below_no_priority(name: str, text: str, priority: str | None) -> None:
    words: Words = (
        {"env": {MEMORY: "1g", name: text}}
        if name.isupper()
        else {"limit": {"nvidia.com/gpumem": "1024", name: text}}
    )
    assert asked(words).get("priority") == priority


def test_a_container_does_not_switch_its_own_quota_off() -> None:
    spoken = said({"env": {MEMORY: "1g", "CUDA_DISABLE_CONTROL": "true"}})
    assert set(spoken.layer) == {"memory"}
    assert "the quota stays in effect" in spoken.meant["CUDA_DISABLE_CONTROL"]


@pytest.mark.parametrize(
    "name",
    [
        "CUDA_OVERSUBSCRIBE",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE",
        "LIBCUDA_LOG_LEVEL",
        "ACTIVE_OOM_KILLER",
        "RECORD_KERNEL_INTERVAL",
        "CUDA_REDIRECT",
    ],
)
def test_variables_of_hami_core_itself_request_nothing(name: str) -> None:
    spoken = said({"env": {MEMORY: "1g", name: "true"}})
    assert set(spoken.layer) == {"memory"}
    assert spoken.meant[name]


# --- annotations ---


def annotated(**annotations: str) -> dict[str, str]:
    named = {f"nvidia.com/{name.replace('_', '-')}": text for name, text in annotations.items()}
    return asked({"limit": {"nvidia.com/gpumem": "1024"}, "annotation": named})


def test_models_and_cards_that_may_be_used() -> None:
    assert annotated(use_gputype="A100,NVIDIA A10")["allow"] == "A100,NVIDIA A10"
    assert annotated(use_gpuuuid="GPU-1,GPU-2")["allow"] == "GPU-1,GPU-2"
    assert annotated(nouse_gputype="T4", nouse_gpuuuid="GPU-3")["deny"] == "T4,GPU-3"
    assert annotated(use_gputype="A100", use_gpuuuid="GPU-1")["allow"] == "GPU-1"


def test_alaudas_compute_capabilities_are_comparisons() -> None:
    limits = {"nvidia.com/gpualloc": "1", "nvidia.com/gpumem": "1024"}
    found = asked({"limit": limits, "annotation": {"computeCapabilities": "8.0+"}})
    assert found["compute-capability"] == ">=8.0"
    told = refusal({"limit": limits, "annotation": {"computeCapabilities": "80"}})
    assert told.endswith(
        "computeCapabilities=80 (HAMi): does not compare compute capabilities. "
        "Write e.g. >=8.0, or >=8.0,<10.0."
    )


@pytest.mark.parametrize(("text", "placement"), [("true", "topology"), ("false", None)])
def test_cards_of_one_numa_node_are_near_to_each_other(text: str, placement: str | None) -> None:
    assert annotated(numa_bind=text).get("placement") == placement


@pytest.mark.parametrize(
    ("text", "placement"),
    [
        ("binpack", "binpack"),
        ("spread", "spread"),
        ("topology-aware", "topology"),
        ("numa", "topology"),
        ("mutex", None),
        ("mutex,binpack", "binpack"),
        ("spread, numa", "spread"),
    ],
)
def test_hamis_placements(text: str, placement: str | None) -> None:
    words: Words = {
        "limit": {"nvidia.com/gpumem": "1024"},
        "annotation": {"hami.io/gpu-scheduler-policy": text},
    }
    assert asked(words).get("placement") == placement


def test_a_card_without_neighbours_gets_cores_100() -> None:
    name = "hami.io/gpu-scheduler-policy"
    words: Words = {"limit": {"nvidia.com/gpumem": "1024"}, "annotation": {name: "mutex"}}
    assert "gpushare.io/cores=100" in said(words).meant[name]


def test_a_placement_that_hami_does_not_know_is_refused() -> None:
    words: Words = {
        "limit": {"nvidia.com/gpumem": "1024"},
        "annotation": {"hami.io/gpu-scheduler-policy": "binpack,spraed"},
    }
    assert "Did you mean spread?" in refusal(words)


@pytest.mark.parametrize(
    ("text", "backend"), [("hami-core", "interposer"), ("mig", "mig"), ("mps", "mps")]
)
@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("nvidia.com/vgpu-mode", "nvidia.com/gpumem"),
        ("volcano.sh/vgpu-mode", "volcano.sh/vgpu-memory"),
    ],
)
def test_a_key_that_divides_a_card_selects_the_backend(
    name: str, limit: str, text: str, backend: str
) -> None:
    assert asked({"limit": {limit: "1024"}, "annotation": {name: text}})["backend"] == backend


@pytest.mark.parametrize(
    "name",
    [
        "hami.io/vgpu-node",
        "hami.io/vgpu-time",
        "hami.io/bind-time",
        "hami.io/bind-phase",
        "hami.io/vgpu-devices-to-allocate",
        "hami.io/vgpu-devices-allocated",
        "hami.io/node-scheduler-policy",
        "hami.io/device-scoring-weights",
    ],
)
def test_keys_of_schedulers_request_nothing(name: str) -> None:
    spoken = said({"annotation": {name: "1"}})
    assert (spoken.layer, spoken.problems) == ({}, ())
    assert spoken.meant[name]


# --- limits, of HAMi's and of Volcano's names ---


@pytest.mark.parametrize("names", LIMITS, ids=lambda names: names[0])
class TestLimits:
    def test_memory_is_in_mib_of_each_card(self, names: tuple[str, ...]) -> None:
        words: Words = {"limit": {names[0]: "2", names[1]: "3000", names[3]: "30"}}
        assert asked(words) == {"count": "2", "memory": "3000MiB", "cores": "30"}

    def test_memory_in_percent_is_of_each_card(self, names: tuple[str, ...]) -> None:
        words: Words = {"limit": {names[0]: "2", names[2]: "50"}}
        assert asked(words) == {"count": "2", "memory-percent": "50"}

    @pytest.mark.parametrize("strict", [True, False])
    def test_both_forms_of_memory_are_refused(
        self, names: tuple[str, ...], *, strict: bool
    ) -> None:
        words: Words = {"limit": {names[1]: "3000", names[2]: "50"}}
        assert refusal(words, strict=strict).endswith("Keep one of the two.")

    def test_without_memory_it_is_all_of_the_cards(self, names: tuple[str, ...]) -> None:
        words: Words = {"limit": {names[0]: "1", names[3]: "30"}}
        assert asked(words) == {"count": "1", "cores": "30", "memory-percent": "100"}
        assert "memory-percent 100" in note(words)

    def test_no_memory_and_no_cores_are_as_if_they_were_not_there(
        self, names: tuple[str, ...]
    ) -> None:
        words: Words = {"limit": {names[1]: "0", names[3]: "30"}}
        assert asked(words) == {"cores": "30", "memory-percent": "100"}
        assert asked({"limit": {names[1]: "512", names[3]: "0"}}) == {"memory": "512MiB"}

    def test_100_cores_are_whole_cards(self, names: tuple[str, ...]) -> None:
        words: Words = {"limit": {names[0]: "2", names[3]: "100"}}
        assert asked(words) == {"count": "2", "cores": "100"}

    @pytest.mark.parametrize(
        ("which", "text"), [(0, "0"), (0, "17"), (1, "1.5"), (2, "101"), (3, "101"), (3, "-5")]
    )
    def test_an_invalid_amount_is_refused(
        self, names: tuple[str, ...], which: int, text: str
    ) -> None:
        others = {names[1]: "512"} if which != 1 else {names[3]: "30"}
        assert names[which] in refusal({"limit": {**others, names[which]: text}})


def test_volcanos_number_alone_is_all_memory_of_a_shared_card() -> None:
    assert asked({"limit": {"volcano.sh/vgpu-number": "1"}}) == {
        "count": "1",
        "memory-percent": "100",
    }


def test_volcanos_annotations() -> None:
    words: Words = {
        "limit": {"volcano.sh/vgpu-memory": "1024"},
        "annotation": {
            "volcano.sh/vgpu-use-gpuuuid": "GPU-1",
            "volcano.sh/vgpu-nouse-gpuuuid": "GPU-2",
            "volcano.sh/vgpu-podgroup-policy": "spread",
        },
    }
    assert asked(words) == {"memory": "1GiB", "allow": "GPU-1", "deny": "GPU-2"}
