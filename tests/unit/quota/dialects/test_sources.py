# SPDX-License-Identifier: Apache-2.0
"""What other systems' requests come to beside our own: precedence, trust, pods, two at once."""

from collections.abc import Mapping

import hypothesis
import pytest
from hypothesis import strategies as st

from gpushare.quota import (
    Cards,
    Ceilings,
    Defaults,
    Dialects,
    Given,
    Quota,
    QuotaError,
    give,
    read_again,
    read_quota,
)
from gpushare.quota.dialects import Dialect, Listener, Place, Row, Tables
from gpushare.quota.dialects.units import MIBS, NAMES, TEXT
from gpushare.quota.keys import KEYS
from gpushare.quota.pod import Pod
from gpushare.quota.sources import Trust
from tests.unit.quota.test_precedence import ENGINE, NODE, SAID, assert_at_most, most

GIB = 1 << 30
LENIENT, STRICT = Dialects(), Dialects("strict")
HAMI = {"CUDA_DEVICE_MEMORY_LIMIT": "4g", "CUDA_DEVICE_SM_LIMIT": "30"}
POD = {"io.kubernetes.cri.container-name": "train", "io.kubernetes.cri.sandbox-id": "5a4d"}

# A vendor that asks by annotations, as no test of these can rest on a vendor's table.
ACME = Dialect(
    "acme",
    "Acme",
    rows=(
        Row("acme.io/mem", "annotation", "asks", "Memory.", MIBS, "memory"),
        Row("acme.io/container.{container}.mem", "annotation", "asks", "One's.", MIBS, "memory"),
        Row("acme.io/models", "annotation", "says", "Models.", NAMES, "allow"),
        Row("acme.io/for", "annotation", "says", "Whose.", TEXT, names_container=True),
        Row("ACME_MEM", "env", "asks", "Memory.", MIBS, "memory"),
        Row("ACME_COUNT", "env", "says", "Models.", NAMES, "deny"),
    ),
)
TABLES = Tables([ACME])


def read(
    annotations: dict[str, str] | None = None,
    env: dict[str, str] | None = None,
    *,
    dialects: Dialects = LENIENT,
    trust: str | None = None,
    **others: object,
) -> Quota:
    return read_quota(
        annotations or {},
        env or {},
        dialects=dialects,
        trust=trust,  # type: ignore[arg-type]
        **others,  # type: ignore[arg-type]
    )


def given(quota: Quota) -> Given:
    return give(quota)


def refusal(*sources: dict[str, str], **how: object) -> str:
    with pytest.raises(QuotaError) as refused:
        read(*sources, **how)  # type: ignore[arg-type]
    return str(refused.value)


# --- alone ---


def test_a_container_of_another_system_gets_what_it_asks_for() -> None:
    quota = read({}, HAMI)
    assert (quota.memory_bytes, quota.cores) == (4 * GIB, 30)
    assert quota.rows() == {"memory": "4GiB env", "cores": "30 env"}
    assert given(quota).policy == "fixed-share"


def test_what_it_means_here_is_noted() -> None:
    [note] = read({}, HAMI).notes
    assert note == (
        'HAMi: env CUDA_DEVICE_MEMORY_LIMIT "4g" is memory 4GiB, '
        'env CUDA_DEVICE_SM_LIMIT "30" is cores 30'
    )


def test_without_dialects_none_is_read() -> None:
    assert read_quota({}, HAMI) == Quota()


def test_a_refusal_has_the_vendors_key_and_the_text_as_it_was_written() -> None:
    quota = read({}, {"CUDA_DEVICE_MEMORY_LIMIT": "16384m"})
    ceilings = Ceilings(memory_bytes=8 * GIB)
    with pytest.raises(QuotaError) as refused:
        ceilings.refuse_above(quota, given(quota))
    assert str(refused.value) == (
        'env CUDA_DEVICE_MEMORY_LIMIT: "16384m" is above the ceiling, 8GiB; ask for 8GiB or less'
    )


def test_a_value_that_is_none_is_refused_with_its_fix() -> None:
    assert refusal({}, {"CUDA_DEVICE_MEMORY_LIMIT": "4Q"}).startswith(
        'env CUDA_DEVICE_MEMORY_LIMIT (HAMi): "4Q" is not a size; write'
    )


def test_defaults_fill_what_it_does_not_say() -> None:
    quota = read({}, {"CUDA_DEVICE_MEMORY_LIMIT": "4g"}, defaults=Defaults(cores=20))
    assert quota.rows() == {"memory": "4GiB env", "cores": "20 default"}


def test_what_an_operator_set_is_above_it() -> None:
    quota = read({}, HAMI, operator={"memory": "2GiB"})
    assert quota.memory_bytes == 2 * GIB
    assert quota.rows_beneath()["memory"] == "4GiB env"
    assert any('CUDA_DEVICE_MEMORY_LIMIT "4g" was not taken' in note for note in quota.notes)


def test_its_rows_can_be_read_again() -> None:
    rows = read({}, HAMI).rows()
    assert read_again(rows, {"cores": "50"}).memory_bytes == 4 * GIB


def test_cards_that_an_engine_put_in_become_shares_of_them() -> None:
    cards = Cards("docker run --gpus", count=2)
    quota = read({}, HAMI, cards=cards)
    shared = give(quota, cards=cards)
    assert (shared.kind, shared.count, shared.memory_bytes) == ("shared", 2, 4 * GIB)


def test_a_word_that_only_says_how_is_noted_where_it_counts_for_nothing() -> None:
    env = {"GPUSHARE_MEMORY": "4GiB", "GPU_CORE_UTILIZATION_POLICY": "force"}
    quota = read({}, env)
    assert quota.rows() == {"memory": "4GiB env"}
    [note] = quota.notes
    assert note == (
        'env GPU_CORE_UTILIZATION_POLICY (HAMi) "force" was not taken: it only says how, and '
        "nothing of HAMi asks"
    )


def test_several_words_that_only_say_how_are_one_note() -> None:
    env = {
        "GPUSHARE_MEMORY": "4GiB",
        "GPU_CORE_UTILIZATION_POLICY": "force",
        "CUDA_TASK_PRIORITY": "1",
    }
    [note] = read({}, env).notes
    assert note == (
        "env GPU_CORE_UTILIZATION_POLICY, env CUDA_TASK_PRIORITY (HAMi) were not taken: they only "
        "say how, and nothing of HAMi asks"
    )


def test_an_images_own_variable_is_not_worth_a_note() -> None:
    env = {"GPUSHARE_MEMORY": "4GiB", "NVIDIA_VISIBLE_DEVICES": "0", "CUDA_TASK_PRIORITY": "0"}
    assert read({}, env).notes == ()


def test_cards_beside_a_request_of_the_same_dialect_are_taken() -> None:
    env = {"NVIDIA_GPU_MEMORY_REQUEST": "4096", "NVIDIA_VISIBLE_DEVICES": "1"}
    assert read({}, env).rows() == {"memory": "4GiB env", "devices": "1 env"}


def test_cards_that_an_engine_put_in_are_not_named_once_more() -> None:
    env = {"NVIDIA_GPU_MEMORY_REQUEST": "4096", "NVIDIA_VISIBLE_DEVICES": "0"}
    cards = Cards("docker run --gpus (nvidia hook)", count=1)
    assert give(read({}, env, cards=cards), cards=cards).devices == ()


# --- trust ---


def test_the_environment_of_a_pod_asks_for_nothing_in_any_words() -> None:
    quota = read(POD, HAMI)
    assert not quota.asked
    assert "the environment may only shrink" in quota.notes[0]
    assert not any(note.startswith("HAMi:") for note in quota.notes)


def test_the_environment_of_a_pod_may_ask_where_the_operator_says_so() -> None:
    assert read(POD, HAMI, trust="ask").memory_bytes == 4 * GIB


def test_what_is_smaller_shrinks_and_what_is_larger_does_not() -> None:
    annotations = {**POD, "gpushare.io/memory": "8GiB"}
    assert read(annotations, {"CUDA_DEVICE_MEMORY_LIMIT": "4g"}).memory_bytes == 4 * GIB
    larger = read(annotations, {"CUDA_DEVICE_MEMORY_LIMIT": "16g"})
    assert larger.memory_bytes == 8 * GIB
    assert (
        'env CUDA_DEVICE_MEMORY_LIMIT "16g" was not taken: pod annotation gpushare.io/memory '
        '"8GiB" is above it' in larger.notes
    )


def test_an_environment_that_is_not_read_is_named() -> None:
    quota = read({}, {**HAMI, "CUDA_TASK_PRIORITY": "0"}, trust="ignore")
    assert not quota.asked
    assert "CUDA_DEVICE_MEMORY_LIMIT was not read: trust.env is ignore" in quota.notes


def test_an_environment_that_is_not_read_is_not_refused_either() -> None:
    assert not read({}, {"CUDA_DEVICE_MEMORY_LIMIT": "4Q"}, trust="ignore").asked


# --- two at once ---


def test_a_strict_node_refuses_two_dialects_and_names_both() -> None:
    ours = {"gpushare.io/memory": "8GiB"}
    assert refusal(ours, HAMI, dialects=STRICT) == (
        'annotation gpushare.io/memory: "8GiB" asks as gpushare, and env CUDA_DEVICE_MEMORY_LIMIT '
        '"4g" asks as HAMi; keep one of the two, or let dialects.mode be lenient: the smaller is '
        "taken"
    )


def test_a_strict_node_takes_one() -> None:
    assert read({}, HAMI, dialects=STRICT).memory_bytes == 4 * GIB
    assert read({"gpushare.io/memory": "8GiB"}, dialects=STRICT).memory_bytes == 8 * GIB


def test_what_a_binder_hands_on_of_an_annotation_is_no_second_dialect() -> None:
    annotations = {**POD, "nvidia.com/container.train.gpu-memory.request": "4Gi"}
    env = {"NVIDIA_GPU_MEMORY_REQUEST": "4096", "NVIDIA_GPU_MEMORY_LIMIT": "8192"}
    quota = read(annotations, env, dialects=STRICT, trust="ask")
    assert quota.memory_bytes == 4 * GIB
    assert read({}, env, dialects=STRICT, trust="ask").memory_limit_bytes == 8 * GIB


def test_a_strict_node_does_not_count_what_is_not_read() -> None:
    quota = read({"gpushare.io/memory": "8GiB"}, HAMI, dialects=STRICT, trust="ignore")
    assert quota.memory_bytes == 8 * GIB


@pytest.mark.parametrize(("ours", "taken"), [("8GiB", 4), ("2GiB", 2)])
def test_a_lenient_node_takes_what_asks_for_less_and_says_so(ours: str, taken: int) -> None:
    quota = read({}, {"GPUSHARE_MEMORY": ours, **HAMI})
    assert (quota.memory_bytes, quota.cores) == (taken * GIB, 30)
    left, kept = (
        ("GPUSHARE_MEMORY", "CUDA_DEVICE_MEMORY_LIMIT")
        if taken == 4
        else ("CUDA_DEVICE_MEMORY_LIMIT", "GPUSHARE_MEMORY")
    )
    assert any(note.startswith(f"env {left}") and kept in note for note in quota.notes)


# --- dialects that are not taken ---


def test_a_request_in_a_dialect_that_is_not_taken_is_refused_with_our_words_for_it() -> None:
    dialects = Dialects(accept=frozenset({"vcuda"}), where={"accept": "gpushare.yaml:3"})
    assert refusal({}, HAMI, dialects=dialects) == (
        'env CUDA_DEVICE_MEMORY_LIMIT: "4g" asks as HAMi, which this node does not take; '
        "write GPUSHARE_MEMORY=4GiB GPUSHARE_CORES=30, or have hami added to dialects.accept "
        "(gpushare.yaml:3)"
    )


def test_it_is_left_and_noted_where_the_operator_says_so() -> None:
    dialects = Dialects(accept=frozenset(), others="ignore")
    quota = read({}, {"GPUSHARE_MEMORY": "8GiB", **HAMI}, dialects=dialects)
    assert quota.rows() == {"memory": "8GiB env"}
    assert (
        'env CUDA_DEVICE_MEMORY_LIMIT (HAMi) "4g" was not taken: hami is not in dialects.accept'
        in quota.notes
    )


@pytest.mark.parametrize(
    "env", [{"CUDA_DEVICE_MEMORY_LIMIT": "0"}, {"CUDA_TASK_PRIORITY": "1"}, {"PATH": "/bin"}]
)
def test_what_asks_for_nothing_is_nobodys_request(env: dict[str, str]) -> None:
    assert not read({}, env, dialects=Dialects(accept=frozenset())).asked


# --- annotations of a vendor ---


def listener(dialects: Dialects = LENIENT, of_pod: dict[str, str] | None = None) -> Listener:
    return Listener(TABLES, dialects, Pod("train", "5a4d"), of_pod)


def test_annotations_of_a_pod_are_beneath_the_containers_own() -> None:
    annotations = {"acme.io/mem": "1024", "acme.io/container.train.mem": "512"}
    heard = listener(of_pod=annotations).hear(annotations, {})
    [scoped] = heard.at(Place.SCOPED)
    assert scoped.layer["memory"].text == "512MiB"
    assert not heard.at(Place.OWN)
    own = listener(of_pod={}).hear({"acme.io/mem": "1024"}, {})
    assert own.at(Place.OWN)[0].layer["memory"].source.kind == "annotation"


def test_one_that_names_no_container_is_for_the_only_one_that_asks() -> None:
    heard = listener().hear({"acme.io/mem": "1024"}, {})
    assert heard.unnamed is not None
    assert str(heard.unnamed.source) == "pod annotation acme.io/mem"
    scoped = listener().hear({"acme.io/container.train.mem": "512"}, {})
    assert scoped.unnamed is None


def test_a_pods_requests_for_another_container_are_not_this_ones() -> None:
    annotations = {"acme.io/container.proxy.mem": "512", "acme.io/mem": "1024"}
    heard = listener().hear(annotations, {})
    assert not heard.said
    [note] = heard.notes
    assert note == (
        'pod annotation acme.io/mem (Acme) "1024" was not taken: its pod\'s requests are for '
        '"proxy"'
    )


def test_one_without_a_name_is_refused_where_several_are_named() -> None:
    annotations = {f"acme.io/container.{name}.mem": "512" for name in ("train", "proxy")}
    with pytest.raises(QuotaError, match="write it for each container"):
        listener().hear({**annotations, "acme.io/mem": "1024"}, {})


def test_one_with_a_name_needs_a_pod() -> None:
    with pytest.raises(QuotaError, match=r"this one is in none; write gpushare\.io/memory"):
        Listener(TABLES, LENIENT).hear({"acme.io/container.train.mem": "512"}, {})


@pytest.mark.parametrize(("named", "place"), [("train", Place.SCOPED), ("proxy", None)])
def test_a_word_that_names_the_container_addresses_the_others(
    named: str, place: Place | None
) -> None:
    annotations = {"acme.io/mem": "1024", "acme.io/models": "A100", "acme.io/for": named}
    heard = listener(of_pod=annotations).hear(annotations, {})
    assert list(heard.said) == ([] if place is None else [place])
    assert heard.unnamed is None


def test_how_is_said_no_higher_than_what_asks() -> None:
    heard = listener(of_pod={}).hear({"acme.io/models": "A100"}, {"ACME_MEM": "512"})
    assert list(heard.said) == [Place.ENV]
    assert set(heard.at(Place.ENV)[0].layer) == {"memory", "allow"}


def test_what_is_said_of_a_pod_without_a_name_is_for_all_of_them() -> None:
    annotations = {"acme.io/models": "A100", "acme.io/container.train.mem": "512"}
    heard = listener().hear({**annotations, "acme.io/container.proxy.mem": "1"}, {})
    assert heard.at(Place.OF_POD)[0].layer["allow"].value == ("A100",)
    assert not heard.notes


# --- any words at all ---

SIZES = st.integers(1, 100).map(lambda size: f"{size}g")
PERCENTS = st.integers(0, 100).map(str)
MIB_TEXTS = st.integers(1, 100 << 10).map(str)
THEIRS = st.fixed_dictionaries(
    {},
    optional={
        "CUDA_DEVICE_MEMORY_LIMIT": SIZES,
        "CUDA_DEVICE_MEMORY_LIMIT_1": SIZES,
        "CUDA_DEVICE_SM_LIMIT": PERCENTS,
        "GPU_CORE_UTILIZATION_POLICY": st.sampled_from(["force", "default", "disable"]),
        "CUDA_TASK_PRIORITY": st.sampled_from(["0", "1"]),
        "NVIDIA_GPU_MEMORY_REQUEST": MIB_TEXTS,
        "NVIDIA_GPU_MEMORY_LIMIT": MIB_TEXTS,
        "NVIDIA_VISIBLE_DEVICES": st.sampled_from(["all", "0", "0,1", "void"]),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": st.integers(1, 100).map(str),
        "ALIYUN_COM_GPU_MEM_DEV": st.just("80"),
        "ALIYUN_COM_GPU_MEM_CONTAINER": st.integers(1, 80).map(str),
        "ALIYUN_COM_GPU_HIGH_PRIO": st.sampled_from(["0", "1"]),
    },
)


@hypothesis.given(SAID, THEIRS, st.sampled_from(["ask", "shrink"]), ENGINE, NODE)
def test_other_systems_variables_never_enlarge_what_annotations_granted(
    own: Mapping[str, str],
    theirs: Mapping[str, str],
    trust: Trust,
    cards: Cards | None,
    defaults: Defaults,
) -> None:
    if trust == "ask":
        defaults = Defaults()  # who may ask comes before what the node gives who does not
    annotations = {KEYS[key].annotation: text for key, text in own.items()}
    above = read(annotations, trust=trust, cards=cards, defaults=defaults)
    high = most(above, cards)
    hypothesis.assume(high is not None and high.kind != "none")
    assert high is not None
    try:
        beside = read(annotations, dict(theirs), trust=trust, cards=cards, defaults=defaults)
    except QuotaError:
        return
    low = most(beside, cards)
    if low is not None:
        assert_at_most(low, high, beside, above)


@hypothesis.given(THEIRS)
def test_what_comes_of_any_words_can_be_kept_and_read_again(theirs: Mapping[str, str]) -> None:
    try:
        quota = read({}, dict(theirs))
    except QuotaError:
        return
    again = read_again(quota.rows(), {})
    assert {key: one.value for key, one in again.asked.items()} == {
        key: one.value for key, one in quota.asked.items()
    }
