# SPDX-License-Identifier: Apache-2.0
"""What other systems' requests come to beside our own: precedence, trust, pods, two at once."""

from collections.abc import Mapping

import hypothesis
import pytest
from hypothesis import strategies as st

from gpushare.quota.annotations import PodIdentity
from gpushare.quota.dialects.parse import Tables
from gpushare.quota.dialects.translate import Translator
from gpushare.quota.dialects.units import MIBS, NAMES, TEXT
from gpushare.quota.dialects.vendor_key import Dialect, VendorKey
from gpushare.quota.effective_request import (
    Defaults,
    EffectiveRequest,
    resolve_request,
)
from gpushare.quota.errors import QuotaError
from gpushare.quota.keys import KEYS
from gpushare.quota.parse import Precedence, parse_request
from gpushare.quota.request import EngineCards, QuotaRequest
from gpushare.quota.request_policy import Dialects, EnvTrust, MaxPerRequest
from tests.unit.quota.records import rows
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
        VendorKey("acme.io/mem", "Memory.", MIBS, "memory", where="annotation", role="request"),
        VendorKey(
            "acme.io/container.{container}.mem",
            "One's.",
            MIBS,
            "memory",
            where="annotation",
            role="request",
        ),
        VendorKey("acme.io/models", "Models.", NAMES, "allow", where="annotation", role="option"),
        VendorKey(
            "acme.io/for", "Whose.", TEXT, where="annotation", role="option", names_container=True
        ),
        VendorKey("ACME_MEM", "Memory.", MIBS, "memory", where="env", role="request"),
        VendorKey("ACME_COUNT", "Models.", NAMES, "deny", where="env", role="option"),
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
) -> QuotaRequest:
    return parse_request(
        annotations or {},
        env or {},
        dialects=dialects,
        trust=trust,  # type: ignore[arg-type]
        **others,  # type: ignore[arg-type]
    ).valid()


def given(quota: QuotaRequest) -> EffectiveRequest:
    return resolve_request(quota)


def refusal(*sources: dict[str, str], **how: object) -> str:
    with pytest.raises(QuotaError) as refused:
        read(*sources, **how)  # type: ignore[arg-type]
    return str(refused.value)


# --- alone ---


def test_a_container_with_another_systems_keys_gets_its_request() -> None:
    quota = read({}, HAMI)
    assert (quota.memory_bytes, quota.cores) == (4 * GIB, 30)
    assert rows(quota.requested) == {"memory": "4GiB env", "cores": "30 env"}
    assert given(quota).policy == "fixed-share"


def test_the_translation_is_noted() -> None:
    [note] = read({}, HAMI).notes
    assert note == (
        'HAMi: env CUDA_DEVICE_MEMORY_LIMIT "4g" is memory 4GiB, '
        'env CUDA_DEVICE_SM_LIMIT "30" is cores 30'
    )


def test_without_dialects_none_is_read() -> None:
    assert parse_request({}, HAMI).valid() == QuotaRequest()


def test_a_refusal_has_the_vendors_key_and_the_text_as_it_was_written() -> None:
    quota = read({}, {"CUDA_DEVICE_MEMORY_LIMIT": "16384m"})
    ceilings = MaxPerRequest(memory_bytes=8 * GIB)
    with pytest.raises(QuotaError) as refused:
        ceilings.refuse_above(quota, given(quota))
    assert str(refused.value) == (
        "env CUDA_DEVICE_MEMORY_LIMIT=16384m: exceeds the maximum, 8GiB. Request 8GiB or less."
    )


def test_overrides_take_precedence_over_dialects() -> None:
    quota = read({}, HAMI, operator={"memory": "2GiB"})
    assert quota.memory_bytes == 2 * GIB
    assert rows(quota.before_operator)["memory"] == "4GiB env"
    assert any('CUDA_DEVICE_MEMORY_LIMIT "4g" was not applied' in note for note in quota.notes)


def test_cards_that_an_engine_put_in_become_shares_of_them() -> None:
    cards = EngineCards("docker run --gpus", count=2)
    quota = read({}, HAMI, cards=cards)
    shared = resolve_request(quota, cards=cards)
    assert (shared.kind, shared.count, shared.memory_bytes) == ("shared", 2, 4 * GIB)


def test_a_modifier_without_effect_is_noted() -> None:
    env = {"GPUSHARE_MEMORY": "4GiB", "GPU_CORE_UTILIZATION_POLICY": "force"}
    quota = read({}, env)
    assert rows(quota.requested) == {"memory": "4GiB env"}
    [note] = quota.notes
    assert note == (
        'env GPU_CORE_UTILIZATION_POLICY (HAMi) "force" was not applied: it is only an option, and '
        "no HAMi key requests a GPU"
    )


def test_cards_that_an_engine_put_in_are_not_named_once_more() -> None:
    env = {"NVIDIA_GPU_MEMORY_REQUEST": "4096", "NVIDIA_VISIBLE_DEVICES": "0"}
    cards = EngineCards("docker run --gpus (nvidia hook)", count=1)
    assert resolve_request(read({}, env, cards=cards), cards=cards).devices == ()


# --- trust ---


def test_the_environment_of_a_pod_is_no_request_in_any_dialect() -> None:
    quota = read(POD, HAMI)
    assert not quota.requested
    assert "the environment may only shrink" in quota.notes[0]
    assert not any(note.startswith("HAMi:") for note in quota.notes)


def test_a_smaller_value_shrinks_and_a_larger_one_does_not_enlarge() -> None:
    annotations = {**POD, "gpushare.io/memory": "8GiB"}
    assert read(annotations, {"CUDA_DEVICE_MEMORY_LIMIT": "4g"}).memory_bytes == 4 * GIB
    larger = read(annotations, {"CUDA_DEVICE_MEMORY_LIMIT": "16g"})
    assert larger.memory_bytes == 8 * GIB
    assert (
        'env CUDA_DEVICE_MEMORY_LIMIT "16g" was not applied: pod annotation gpushare.io/memory '
        '"8GiB" takes precedence' in larger.notes
    )


def test_an_environment_that_is_not_read_is_named() -> None:
    quota = read({}, {**HAMI, "CUDA_TASK_PRIORITY": "0"}, trust="ignore")
    assert not quota.requested
    assert "CUDA_DEVICE_MEMORY_LIMIT was not read: trust.env is ignore" in quota.notes


# --- two at once ---


def test_a_strict_node_refuses_two_dialects_and_names_both() -> None:
    ours = {"gpushare.io/memory": "8GiB"}
    assert refusal(ours, HAMI, dialects=STRICT) == (
        "annotation gpushare.io/memory=8GiB: uses gpushare keys, and env "
        'CUDA_DEVICE_MEMORY_LIMIT "4g" uses HAMi keys. Keep one of the two, or '
        "set dialects.mode to lenient to apply the "
        "smaller value."
    )


def test_an_annotation_passed_on_by_a_binder_is_no_second_dialect() -> None:
    annotations = {**POD, "nvidia.com/container.train.gpu-memory.request": "4Gi"}
    env = {"NVIDIA_GPU_MEMORY_REQUEST": "4096", "NVIDIA_GPU_MEMORY_LIMIT": "8192"}
    quota = read(annotations, env, dialects=STRICT, trust="request")
    assert quota.memory_bytes == 4 * GIB
    assert read({}, env, dialects=STRICT, trust="request").memory_limit_bytes == 8 * GIB


@pytest.mark.parametrize(("ours", "taken"), [("8GiB", 4), ("2GiB", 2)])
def test_a_lenient_node_uses_the_smaller_request_and_notes_it(ours: str, taken: int) -> None:
    quota = read({}, {"GPUSHARE_MEMORY": ours, **HAMI})
    assert (quota.memory_bytes, quota.cores) == (taken * GIB, 30)
    left, kept = (
        ("GPUSHARE_MEMORY", "CUDA_DEVICE_MEMORY_LIMIT")
        if taken == 4
        else ("CUDA_DEVICE_MEMORY_LIMIT", "GPUSHARE_MEMORY")
    )
    assert any(note.startswith(f"env {left}") and kept in note for note in quota.notes)


def test_of_a_whole_card_and_a_part_a_lenient_node_takes_the_part() -> None:
    share = given(read({}, {"CUDA_DEVICE_SM_LIMIT": "100", "GPUSHARE_MEMORY": "2GiB"}))
    assert (share.kind, share.memory_bytes) == ("shared", 2 * GIB)


def test_cards_that_a_scheduler_noted_are_no_requests_of_containers() -> None:
    noted = {
        "vke.volcengine.com/gpu-index-container-train": "0,1",
        "vke.volcengine.com/container-multiple-gpu": "2",
    }
    assert "Resource limits are not passed" in refusal({**POD, **noted})


# --- dialects that are not taken ---


def test_a_request_in_a_disabled_dialect_is_refused_with_our_keys_for_it() -> None:
    dialects = Dialects(accept=frozenset({"vcuda"}), where={"accept": "gpushare.yaml:3"})
    assert refusal({}, HAMI, dialects=dialects) == (
        "env CUDA_DEVICE_MEMORY_LIMIT=4g: uses HAMi keys, which this node does not accept. "
        "Write GPUSHARE_MEMORY=4GiB GPUSHARE_CORES=30, or add hami to dialects.accept "
        "(gpushare.yaml:3)."
    )


def test_it_is_left_and_noted_where_the_operator_says_so() -> None:
    dialects = Dialects(accept=frozenset(), others="ignore")
    quota = read({}, {"GPUSHARE_MEMORY": "8GiB", **HAMI}, dialects=dialects)
    assert rows(quota.requested) == {"memory": "8GiB env"}
    assert (
        'env CUDA_DEVICE_MEMORY_LIMIT (HAMi) "4g" was not applied: hami is not in dialects.accept'
        in quota.notes
    )


@pytest.mark.parametrize(
    "env", [{"CUDA_DEVICE_MEMORY_LIMIT": "0"}, {"CUDA_TASK_PRIORITY": "1"}, {"PATH": "/bin"}]
)
def test_a_value_without_a_request_belongs_to_no_dialect(env: dict[str, str]) -> None:
    assert not read({}, env, dialects=Dialects(accept=frozenset())).requested


# --- annotations of a vendor ---


def translator(dialects: Dialects = LENIENT, of_pod: dict[str, str] | None = None) -> Translator:
    return Translator(TABLES, dialects, PodIdentity("train", "5a4d"), of_pod)


def test_annotations_of_a_pod_are_beneath_the_containers_own() -> None:
    annotations = {"acme.io/mem": "1024", "acme.io/container.train.mem": "512"}
    found = translator(of_pod=annotations).translate(annotations, {})
    [scoped] = found.layers[Precedence.SCOPED]
    assert scoped.layer["memory"].text == "512MiB"
    assert Precedence.OWN not in found.layers
    own = translator(of_pod={}).translate({"acme.io/mem": "1024"}, {})
    assert own.layers[Precedence.OWN][0].layer["memory"].source.kind == "annotation"


def test_one_that_names_no_container_is_for_the_only_one_that_asks() -> None:
    found = translator().translate({"acme.io/mem": "1024"}, {})
    assert found.unnamed is not None
    assert str(found.unnamed.source) == "pod annotation acme.io/mem"
    scoped = translator().translate({"acme.io/container.train.mem": "512"}, {})
    assert scoped.unnamed is None


def test_a_pods_requests_for_another_container_are_not_this_ones() -> None:
    annotations = {"acme.io/container.proxy.mem": "512", "acme.io/mem": "1024"}
    found = translator().translate(annotations, {})
    assert not found.layers
    [note] = found.notes
    assert note == (
        'pod annotation acme.io/mem (Acme) "1024" was not applied: the requests of its pod are for '
        '"proxy"'
    )


def test_one_without_a_name_is_refused_where_several_are_named() -> None:
    annotations = {f"acme.io/container.{name}.mem": "512" for name in ("train", "proxy")}
    found = translator().translate({**annotations, "acme.io/mem": "1024"}, {})
    with pytest.raises(QuotaError, match="Write it for each container"):
        found.diagnostics.raise_first()


def test_one_with_a_name_needs_a_pod() -> None:
    found = Translator(TABLES, LENIENT).translate({"acme.io/container.train.mem": "512"}, {})
    with pytest.raises(QuotaError, match=r"this one is not in a pod. Write gpushare\.io/memory."):
        found.diagnostics.raise_first()


@pytest.mark.parametrize(("named", "place"), [("train", Precedence.SCOPED), ("proxy", None)])
def test_a_value_for_one_container_addresses_the_others(
    named: str, place: Precedence | None
) -> None:
    annotations = {"acme.io/mem": "1024", "acme.io/models": "A100", "acme.io/for": named}
    found = translator(of_pod=annotations).translate(annotations, {})
    assert list(found.layers) == ([] if place is None else [place])
    assert found.unnamed is None


def test_a_modifier_has_no_more_trust_than_its_request() -> None:
    found = translator(of_pod={}).translate({"acme.io/models": "A100"}, {"ACME_MEM": "512"})
    assert list(found.layers) == [Precedence.ENV]
    assert set(found.layers[Precedence.ENV][0].layer) == {"memory", "allow"}


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


@hypothesis.given(SAID, THEIRS, st.sampled_from(["request", "reduce"]), ENGINE, NODE)
def test_other_systems_variables_never_exceed_annotations(
    own: Mapping[str, str],
    theirs: Mapping[str, str],
    trust: EnvTrust,
    cards: EngineCards | None,
    defaults: Defaults,
) -> None:
    if trust == "request":
        defaults = Defaults()  # a trusted environment comes before the node's defaults
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
