# SPDX-License-Identifier: Apache-2.0
"""Other systems' requests: what each table's keys come to, alone, recorded and beside our own."""

from __future__ import annotations

from collections.abc import Mapping

import hypothesis
import pytest
from hypothesis import strategies as st

from gpushare.quota.annotations import PodIdentity
from gpushare.quota.dialects import DIALECTS
from gpushare.quota.dialects.parse import Tables, combine
from gpushare.quota.dialects.translate import Translator
from gpushare.quota.dialects.units import MIBS, NAMES, TEXT
from gpushare.quota.dialects.vendor_key import Dialect, VendorKey
from gpushare.quota.effective_request import Defaults
from gpushare.quota.errors import QuotaError
from gpushare.quota.keys import KEYS
from gpushare.quota.node_settings import APPLIED, NODE_SETTINGS
from gpushare.quota.parse import Precedence, parse_request
from gpushare.quota.request import EngineCards, QuotaRequest
from gpushare.quota.request_policy import DialectMode, Dialects, EnvTrust
from tests.corpus import vendor_keys
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


def refusal(*sources: dict[str, str], **how: object) -> str:
    with pytest.raises(QuotaError) as refused:
        read(*sources, **how)  # type: ignore[arg-type]
    return str(refused.value)


# --- trust ---


def test_the_environment_of_a_pod_is_no_request_in_any_dialect() -> None:
    quota = read(POD, HAMI)
    assert not quota.requested
    assert "the environment may only shrink" in quota.notes[0]
    assert not any(note.startswith("HAMi:") for note in quota.notes)


# --- two at once ---


def test_a_strict_node_refuses_two_dialects_and_names_both() -> None:
    ours = {"gpushare.io/memory": "8GiB"}
    assert refusal(ours, HAMI, dialects=STRICT) == (
        "annotation gpushare.io/memory=8GiB: uses gpushare keys, and env "
        'CUDA_DEVICE_MEMORY_LIMIT "4g" uses HAMi keys. Keep one of the two, or '
        "set dialects.mode to lenient to apply the "
        "smaller value."
    )


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


@pytest.mark.parametrize("cores", ["30", "100"])
def test_a_part_of_a_card_is_taken_before_the_whole_card(cores: str) -> None:
    quota = read({}, {"GPUSHARE_CORES": cores, **HAMI})
    assert (quota.memory_bytes, quota.cores) == (4 * GIB, 30)
    note = f'env GPUSHARE_CORES "{cores}" was not applied: another dialect requests part of a card'
    assert (note in quota.notes) == (cores == "100")


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


OURS = SAID.map(lambda said: {KEYS[key].env: text for key, text in said.items()})


@hypothesis.given(SAID, OURS | THEIRS, st.sampled_from(["request", "reduce"]), ENGINE, NODE)
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


NAME = "io.kubernetes.cri.container-name"


HAMI_LINES = (
    "position 0\nlimit nvidia.com/gpu=1\nlimit nvidia.com/gpumem=4096\nlimit nvidia.com/gpucores=30"
)


def read_record(
    text: str,
    beside: Mapping[str, str] | None = None,
    *,
    container: str = "main",
    env: dict[str, str] | None = None,
    mode: DialectMode = "lenient",
) -> QuotaRequest:
    texts = {"gpushare.io/container.main.vendor": text, **(beside or {})}
    return parse_request(
        {**texts, NAME: container},
        env or {},
        of_pod=texts,
        defaults=Defaults(),
        dialects=Dialects(mode=mode),
    ).valid()


def test_what_the_pod_says_in_its_environment_is_no_images_choice() -> None:
    text = f"{HAMI_LINES}\nenv GPU_CORE_UTILIZATION_POLICY=disable"
    env = {"GPU_CORE_UTILIZATION_POLICY": "disable"}
    assert read_record(text, env=env).requested["policy"].value == "best-effort"
    assert "policy" not in read_record(HAMI_LINES, env=env).requested


def test_annotations_beside_the_record_count_once() -> None:
    text = f"{HAMI_LINES}\nannotation nvidia.com/use-gputype=A100"
    found = read_record(text, {"nvidia.com/use-gputype": "A100"})
    assert found.requested["allow"].value == ("A100",)
    assert not [note for note in found.notes if "was not applied" in note]


def test_our_own_keys_beside_it_are_a_second_dialect() -> None:
    ours = {"gpushare.io/container.main.memory": "2GiB"}
    assert read_record(HAMI_LINES, ours).requested["memory"].text == "2GiB"
    with pytest.raises(QuotaError, match=r"uses gpushare keys, and limit nvidia\.com/gpu "):
        read_record(HAMI_LINES, ours, mode="strict")


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "limit nvidia.com/gpumem",
        "node nvidia.com/gpu=1",
        "position x",
        "position " + "9" * 5000,
        "position \u0661",
        "",
    ],
)
def test_a_line_that_no_policy_writes_is_refused(line: str) -> None:
    with pytest.raises(QuotaError, match=r"container\.main\.vendor.*which is no vendor's key"):
        read_record(f"{HAMI_LINES}\n{line}\nlimit nvidia.com/priority=1")


every_dialect = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)


@every_dialect
def test_a_row_translates_to_a_key_of_ours_or_names_a_substitute(dialect: Dialect) -> None:
    for row in dialect.rows:
        assert row.setting in NODE_SETTINGS or not row.setting
        assert row.instead.startswith(APPLIED) is bool(row.setting)
        assert row.key in KEYS or not row.key
        if row.role in {"record", "setting"}:
            assert not row.key
        elif not row.key:
            assert row.instead or row.requires, row.name


def test_nodes_make_of_vendors_keys_what_is_expected() -> None:
    """After a change that is meant, `python -m tests.corpus update` writes it."""
    assert vendor_keys.text() == vendor_keys.FILE.read_text(encoding="utf-8")


def test_every_key_is_among_them_and_has_a_meaning() -> None:
    """But for the settings and the annotations of nodes."""
    tried = set()
    for keys in vendor_keys.containers():
        tried |= {id(value.row) for value in keys.values}
        for one in combine(keys.values, strict=False, position=keys.position):
            if not one.layer and not one.problems:
                assert all(one.meant.get(word.name) for word in one.words), keys.line
    rows = [(name, row) for name, dialect in DIALECTS.items() for row in dialect.rows]
    assert not [
        (name, row.where, row.name)
        for name, row in rows
        if id(row) not in tried and row.role != "setting" and row.where != "node annotation"
    ]
