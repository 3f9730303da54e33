# SPDX-License-Identifier: Apache-2.0
"""Sources of a request: what each may say, which takes precedence, and containers of one pod."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.quota.annotations import pod_of, without_pod
from gpushare.quota.effective_request import Defaults, EffectiveRequest, resolve_request
from gpushare.quota.errors import QuotaError
from gpushare.quota.keys import KEYS, POLICIES
from gpushare.quota.parse import parse_request
from gpushare.quota.request import EngineCards, QuotaRequest, ValueSource
from gpushare.quota.request_policy import Dialects, EnvTrust
from gpushare.quota.size import parse_size
from tests.unit.quota.records import rows

GIB = 1 << 30
POD = {"io.kubernetes.cri.container-name": "train", "io.kubernetes.cri.sandbox-id": "5a4d"}
#: Of each key a value that asks for little and one that asks for more, or for another thing.
VALUES = {
    "memory": ("1GiB", "64GiB"),
    "memory-percent": ("1", "90"),
    "memory-limit": ("2GiB", "64GiB"),
    "cores": ("10", "90"),
    "count": ("1", "8"),
    "devices": ("0", "0,1"),
    "allow": ("T4", "T4,H200"),
    "deny": ("T4,H200", "T4"),
    "compute-capability": (">=7.0,<9.0", ">=7.0"),
    "policy": ("best-effort", "burst-share"),
    "weight": ("1", "900"),
    "priority": ("5", "0"),
    "class": ("offline", "online"),
    "placement": ("binpack", "spread"),
    "oversubscribe": ("none", "host"),
    "backend": ("interposer", "exclusive"),
    "idle-after": ("90s", "2h"),
    "time-limit": ("30m", "8h"),
}
#: A profile stands for some of these (test_effective_request.py), and a remote GPU excludes all.
assert set(VALUES) == set(KEYS) - {"profile", "remote"}


@dataclass(frozen=True)
class Words:
    """What each source says, by canonical key; the highest first."""

    operator: Mapping[str, str]
    own: Mapping[str, str]
    scoped: Mapping[str, str]
    pod: Mapping[str, str]
    env: Mapping[str, str]

    def read(self, trust: EnvTrust = "request") -> QuotaRequest:
        of_pod = {f"gpushare.io/container.train.{key}": text for key, text in self.scoped.items()}
        of_pod |= {f"gpushare.io/{key}": text for key, text in self.pod.items()}
        # What both say in the same words is the pod's; another byte makes it the container's own.
        own = {f"gpushare.io/{key}": f" {text}" for key, text in self.own.items()}
        return parse_request(
            {**POD, **of_pod, **own},
            {KEYS[key].env: text for key, text in self.env.items()},
            of_pod=of_pod,
            operator=self.operator,
            trust=trust,
        ).valid()


SOURCES = ("operator", "own", "scoped", "pod", "env")
SILENT: Mapping[str, Mapping[str, str]] = {name: {} for name in SOURCES}
PAIRS = [
    (higher, lower)
    for place, higher in enumerate(SOURCES)
    for lower in SOURCES[place + 1 :]
    # An unscoped annotation has one place: the container's own or its pod's.
    if (higher, lower) != ("own", "pod")
]


def value(quota: QuotaRequest, key: str) -> object:
    return getattr(quota, KEYS[key].field)


def alone(source: str, key: str, text: str) -> object:
    return value(Words(**{**SILENT, source: {key: text}}).read(), key)


@pytest.mark.parametrize("key", VALUES)
@pytest.mark.parametrize(("higher", "lower"), PAIRS)
def test_a_lower_source_does_not_enlarge_a_key(higher: str, lower: str, key: str) -> None:
    modest, greedy = VALUES[key]
    both = Words(**{**SILENT, higher: {key: modest}, lower: {key: greedy}}).read()
    assert value(both, key) == alone(higher, key, modest)
    assert len(both.notes) == 1
    assert "takes precedence" in both.notes[0]


NARROWED = [key for key in VALUES if key not in {"policy", "placement", "backend"}]


@pytest.mark.parametrize("key", NARROWED)
@pytest.mark.parametrize(("higher", "lower"), [pair for pair in PAIRS if pair[0] != "operator"])
def test_a_lower_source_shrinks_a_key(higher: str, lower: str, key: str) -> None:
    modest, greedy = VALUES[key]
    both = Words(**{**SILENT, higher: {key: greedy}, lower: {key: modest}}).read()
    assert value(both, key) == alone(lower, key, modest)
    assert not both.notes


@pytest.mark.parametrize("key", VALUES)
@pytest.mark.parametrize("trust", ["reduce", "ignore"])
def test_an_environment_that_may_not_ask_sets_no_key(key: str, trust: EnvTrust) -> None:
    quota = Words(**{**SILENT, "env": {key: VALUES[key][1]}}).read(trust)
    assert not quota.requested
    assert "trust.env" in quota.notes[0]
    assert resolve_request(quota).kind == "none"


# --- any words at all ---

GIBS = st.integers(1, 100).map(lambda size: f"{size}GiB")
NUMBERS = st.integers(1, 100).map(str)
NAMES = st.lists(st.sampled_from(["T4", "A100", "H200", "GPU-1"]), min_size=1, unique=True)
CARDS = st.lists(st.integers(0, 5).map(str), min_size=1, unique=True)
TEXTS: dict[str, st.SearchStrategy[str]] = {
    "memory": GIBS,
    "memory-percent": NUMBERS,
    "memory-limit": GIBS,
    "cores": NUMBERS,
    "count": st.integers(1, 4).map(str),
    "devices": CARDS.map(",".join),
    "allow": NAMES.map(",".join),
    "deny": NAMES.map(",".join),
    "policy": st.sampled_from(POLICIES),
    "weight": NUMBERS,
    "priority": st.integers(0, 9).map(str),
    "class": st.sampled_from(["online", "offline"]),
    "placement": st.sampled_from(["binpack", "spread"]),
    "oversubscribe": st.sampled_from(["none", "host"]),
    "backend": st.sampled_from(["driver", "interposer"]),
}
SAID = st.fixed_dictionaries({}, optional=TEXTS)
ENGINE = st.sampled_from(
    [
        None,
        EngineCards("CDI", count=1),
        EngineCards("CDI", devices=("0", "1")),
        EngineCards("CDI", minors=(1,)),
        EngineCards("CDI", all_cards=True),
    ]
)
NODE = st.sampled_from(
    [
        Defaults(),
        Defaults(memory_bytes=8 * GIB, cores=20, policy="burst-share"),
        Defaults(memory_bytes=8 * GIB, shared_by_default=True),
    ]
)


def most(quota: QuotaRequest, cards: EngineCards | None) -> EffectiveRequest | None:
    """Return what is given, None for a request that is refused."""
    try:
        return resolve_request(quota, cards=cards)
    except QuotaError:
        return None


def assert_at_most(
    low: EffectiveRequest, high: EffectiveRequest, quota: QuotaRequest, above: QuotaRequest
) -> None:
    kinds = ("none", "shared", "exclusive")
    assert kinds.index(low.kind) <= kinds.index(high.kind)
    assert (math.inf if low.count is None else low.count) <= (
        math.inf if high.count is None else high.count
    )
    if high.devices:
        assert set(low.devices) <= set(high.devices)
    if high.kind == "shared":
        assert (low.memory_bytes or 0) <= (high.memory_bytes or 0)
        assert (low.memory_percent or 0) <= (high.memory_percent or 0)
        burst = low.memory_limit_bytes or low.memory_bytes or 0
        assert burst <= (high.memory_limit_bytes or high.memory_bytes or 0)
        assert low.cores <= high.cores
        assert low.policy == high.policy
    if above.allow:
        assert set(quota.allow) <= set(above.allow)
    assert set(quota.deny) >= set(above.deny)
    assert (quota.weight or 0) <= (above.weight or 0)
    assert (quota.priority if quota.priority is not None else 10) >= (
        above.priority if above.priority is not None else 10
    )
    assert quota.class_ in {above.class_, "offline"}
    assert quota.oversubscribe in {above.oversubscribe, "none"}
    assert quota.backend == above.backend


def parse_refusal(annotations: dict[str, str], env: dict[str, str]) -> str:
    with pytest.raises(QuotaError) as caught:
        parse_request(annotations, env).valid()
    return str(caught.value)


def test_every_problem_is_collected_with_its_source_and_the_rest_is_read() -> None:
    annotations = {"gpushare.io/memory": "4GiB", "gpushare.io/cores": "lots"}
    env = {"GPUSHARE_WEIGHT": "heavy", "GPUSHARE_COUNTT": "1", "CUDA_DEVICE_MEMORY_LIMIT": "4Q"}
    parsed = parse_request(annotations, env, dialects=Dialects())
    assert [one.source for one in parsed.diagnostics] == [
        ValueSource("annotation", "gpushare.io/cores"),
        ValueSource("env", "GPUSHARE_WEIGHT"),
        ValueSource("env", "GPUSHARE_COUNTT"),
        ValueSource("env", "CUDA_DEVICE_MEMORY_LIMIT"),
    ]
    assert parsed.request.memory_bytes == 4 * GIB
    with pytest.raises(QuotaError, match=r"^annotation gpushare\.io/cores"):
        parsed.valid()


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("compute-capability", "8.0+, < 10.0", (">=8.0", "<10.0")),
        ("devices", "0,GPU-4f1c", ("0", "GPU-4f1c")),
        ("idle-after", "30m", 1800),
        ("memory-percent", "50", 50),
    ],
)
def test_a_text_is_read_as_a_value(key: str, text: str, expected: object) -> None:
    assert alone("env", key, text) == expected


@pytest.mark.parametrize("text", ["4G", "4GB", "4gb", " 4 gB", "4g", "4096M"])
def test_variables_and_options_take_a_size_as_docker_does(text: str) -> None:
    for asked in (
        parse_request({}, {"GPUSHARE_MEMORY": text}),
        parse_request({}, {}, options={"memory": text}),
        parse_request({"gpushare.io/memory": "1GiB"}, {}, operator={"memory": text}),
    ):
        found = asked.valid()
        assert found.memory_bytes == 4 * GIB
        assert parse_size(found.requested["memory"].text) == 4 * GIB  # as the ledger reads it
        assert found.requested["memory"].shown == text


def test_a_size_of_host_memory_is_taken_likewise() -> None:
    asked = parse_request({}, {"GPUSHARE_MEMORY": "1g", "GPUSHARE_OVERSUBSCRIBE": "host:8GB"})
    assert asked.valid().oversubscribe == "host:8GiB"


@pytest.mark.parametrize(
    ("short", "policy"), [("be", "best-effort"), ("fs", "fixed-share"), (" bs ", "burst-share")]
)
def test_a_policy_has_the_short_names_of_qgpu(short: str, policy: str) -> None:
    for asked in (
        parse_request({"gpushare.io/policy": short}, {}),
        parse_request({}, {"GPUSHARE_POLICY": short}),
    ):
        value = asked.valid().requested["policy"]
        assert (value.text, value.value, value.shown) == (policy, policy, short)


REFUSALS = """\
annotation gpushare.io/memory=4Q: not a size. Write e.g. 4GiB.
annotation gpushare.io/memory=4G: ambiguous: 4 GiB = 4294967296 bytes, or 4000000000 bytes.
    Write 4GiB or 4000000000B.
env GPUSHARE_CORES=0: not a share of a card in percent. Write a whole number from 1 to 100.
annotation gpushare.io/cores=101: not a share of a card in percent.
    Write a whole number from 1 to 100.
annotation gpushare.io/memroy=4GiB: unknown key. Did you mean gpushare.io/memory?
env GPUSHARE_MEMORY_PERCENTAGE=50: unknown key. Did you mean GPUSHARE_MEMORY_PERCENT?
env GPUSHARE_memory=4GiB: unknown key. Did you mean GPUSHARE_MEMORY?
annotation gpushare.io/policy=fair: not a valid value.
    Write fixed-share, burst-share, best-effort or native-burst-share.
annotation gpushare.io/devices=first: not a list of cards.
    Write indices or UUIDs, e.g. 0,2 or GPU-4f1c...
annotation gpushare.io/devices=0,0: lists a name twice. Write each name once.
annotation gpushare.io/count=17: not a number of cards. Write a whole number from 1 to 16.
annotation gpushare.io/container.app.memory=4GiB: for container "app" of a pod,
    and this container is not in a pod. Write gpushare.io/memory.
annotation gpushare.io/container.memory=4GiB: must name a container and a key.
    Write gpushare.io/container.NAME.memory."""


@pytest.mark.parametrize("message", REFUSALS.replace("\n    ", " ").splitlines())
def test_a_refusal_names_key_value_rule_and_fix(message: str) -> None:
    where, _, rest = message.partition(" ")
    name, _, text = rest.partition(": ")[0].partition("=")
    assert parse_refusal(
        *({name: text} if where == one else {} for one in ("annotation", "env"))
    ) == (message)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GPUSHARE_COUNT", "4"),
        ("GPUSHARE_DEVICES", "0,1"),
        ("GPUSHARE_MEMORY_LIMIT", "64GiB"),
        ("GPUSHARE_CORES", "100"),
        ("GPUSHARE_CORES", "30"),
        ("GPUSHARE_POLICY", "native-burst-share"),
        ("GPUSHARE_WEIGHT", "9"),
        ("GPUSHARE_BACKEND", "interposer"),
        ("GPUSHARE_PRIORITY", "0"),
        ("GPUSHARE_CLASS", "online"),
        ("GPUSHARE_OVERSUBSCRIBE", "host"),
    ],
)
def test_env_adds_nothing_to_a_grant_that_would_enlarge_it(name: str, value: str) -> None:
    asked = parse_request({"gpushare.io/memory": "1GiB"}, {name: value}).valid()
    assert set(asked.requested) == {"memory"}
    assert "it would exceed what annotation gpushare.io/memory grants" in asked.notes[0]


@given(st.dictionaries(st.text(max_size=12).map(lambda t: "GPUSHARE_" + t), st.text(max_size=12)))
def test_any_environment_is_read_or_refused_in_one_line(env: dict[str, str]) -> None:
    fault = ""
    try:
        parse_request({}, env).valid()
    except QuotaError as error:
        fault = str(error)
    assert fault.isprintable()


CONTAINERD = {
    "io.kubernetes.cri.container-name": "train",
    "io.kubernetes.cri.container-type": "container",
    "io.kubernetes.cri.sandbox-id": "5a4d",
    "io.kubernetes.cri.sandbox-name": "job-1",
    "io.kubernetes.cri.sandbox-namespace": "team",
}
CRI_O = {
    "io.kubernetes.container.name": "train",
    "io.kubernetes.cri-o.ContainerType": "container",
    "io.kubernetes.cri-o.SandboxID": "5a4d",
    "io.kubernetes.pod.name": "job-1",
    "io.kubernetes.pod.namespace": "team",
}
PROXY = {**CONTAINERD, "io.kubernetes.cri.container-name": "proxy"}


def scoped(container: str = "train", key: str = "memory", text: str = "4GiB") -> dict[str, str]:
    return {f"gpushare.io/container.{container}.{key}": text}


@pytest.mark.parametrize("annotations", [CONTAINERD, CRI_O])
def test_untrusted_annotations_identify_no_pod(annotations: dict[str, str]) -> None:
    mine = {"gpushare.io/memory": "4GiB", "org.example/x": "y"}
    assert without_pod({**annotations, **mine}) == mine
    assert pod_of(mine) is None


@pytest.mark.parametrize("annotations", [CONTAINERD, CRI_O])
def test_a_scoped_annotation_reaches_its_container_alone(annotations: dict[str, str]) -> None:
    asked = scoped() | scoped("sidecar", text="nonsense of another program")
    assert parse_request({**annotations, **asked}, {}).valid().memory_bytes == 4 * GIB


def test_a_sidecar_gets_nothing_of_another_containers_request_and_a_note() -> None:
    quota = parse_request({**PROXY, **scoped()}, {}).valid()
    assert not quota.requested
    told = 'the annotations of the pod are for "train", and this is "proxy"'
    assert quota.notes == (told,)
    assert resolve_request(quota).why.startswith(f"no GPU: {told}; ")


def test_an_annotation_without_a_container_applies_to_the_only_named_one() -> None:
    annotations = scoped() | {"gpushare.io/placement": "spread", "gpushare.io/memory": "2GiB"}
    asked = parse_request({**CONTAINERD, **annotations}, {}).valid()
    assert (asked.placement, asked.memory_bytes) == ("spread", 2 * GIB)
    assert not parse_request({**PROXY, **annotations}, {}).valid().requested


def test_an_annotation_without_a_container_is_refused_if_two_are_named() -> None:
    annotations = {**scoped(), **scoped("eval"), "gpushare.io/placement": "spread"}
    with pytest.raises(QuotaError) as refused:
        parse_request({**CONTAINERD, **annotations}, {}).valid()
    assert str(refused.value) == (
        "pod annotation gpushare.io/placement=spread: names no container, "
        "but other annotations name train and eval. Write gpushare.io/container.train.placement."
    )
    assert not parse_request({**PROXY, **annotations}, {}).valid().requested


def test_an_annotation_that_the_pod_has_too_is_the_pods() -> None:
    of_pod = {"gpushare.io/memory": "2GiB"}
    annotations = {**CONTAINERD, **of_pod}
    for seen in (of_pod, None):
        asked = parse_request(annotations, {}, of_pod=seen).valid()
        assert rows(asked.requested) == {"memory": "2GiB pod annotation"}
    assert rows(parse_request(annotations, {}, of_pod={}).valid().requested) == {
        "memory": "2GiB annotation"
    }


def test_only_the_first_unknown_keys_are_compared_with_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An image with a hundred thousand of them would keep each start busy for seconds."""
    compared: list[str] = []

    def compare(word: str, *_: object, **__: object) -> list[str]:
        compared.append(word)
        return []

    monkeypatch.setattr("gpushare.quota.keys.get_close_matches", compare)
    variables = {f"GPUSHARE_NONE_{number}": "x" for number in range(1000)}
    assert len(parse_request({}, variables).diagnostics) == 1000
    assert len(compared) == 16
