# SPDX-License-Identifier: Apache-2.0
"""Precedence: each source beneath each other, for each key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpushare.quota.effective_request import Defaults, EffectiveRequest, resolve_request
from gpushare.quota.errors import QuotaError
from gpushare.quota.keys import KEYS, POLICIES
from gpushare.quota.parse import parse_request
from gpushare.quota.request import EngineCards, QuotaRequest
from gpushare.quota.request_policy import EnvTrust

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
    "numa": ("bind", "none"),
    "oversubscribe": ("none", "host"),
    "backend": ("interposer", "exclusive"),
    "idle-after": ("90s", "2h"),
    "time-limit": ("30m", "8h"),
    "wait": ("5s", "30s"),
}
#: A profile stands for some of these (test_profiles.py).
assert set(VALUES) == set(KEYS) - {"profile"}


@dataclass(frozen=True)
class Words:
    """What each source says, by canonical key; the highest first."""

    operator: Mapping[str, str]
    own: Mapping[str, str]
    scoped: Mapping[str, str]
    pod: Mapping[str, str]
    env: Mapping[str, str]

    def read(
        self,
        trust: EnvTrust = "request",
        cards: EngineCards | None = None,
        defaults: Defaults | None = None,
    ) -> QuotaRequest:
        of_pod = {f"gpushare.io/container.train.{key}": text for key, text in self.scoped.items()}
        of_pod |= {f"gpushare.io/{key}": text for key, text in self.pod.items()}
        # What both say in the same words is the pod's; another byte makes it the container's own.
        own = {f"gpushare.io/{key}": f" {text}" for key, text in self.own.items()}
        return parse_request(
            {**POD, **of_pod, **own},
            {KEYS[key].env: text for key, text in self.env.items()},
            of_pod=of_pod,
            operator=self.operator,
            cards=cards,
            defaults=defaults,
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


@pytest.mark.parametrize("env", [{"memory": "2GiB", "cores": "30"}, {"memory": "2GiB"}])
def test_an_environment_may_make_whole_cards_a_share_of_them(env: dict[str, str]) -> None:
    cards = EngineCards("CDI", devices=("GPU-1",))
    for words, given_cards in (
        (Words(**{**SILENT, "env": env}), cards),
        (Words(**{**SILENT, "env": env, "own": {"count": "1"}}), None),
    ):
        share = resolve_request(words.read("reduce", given_cards), cards=given_cards)
        assert (share.kind, share.memory_bytes) == ("shared", 2 * GIB)
        assert share.cores == int(env.get("cores", "0"))


def test_an_environment_does_not_add_cards_to_those_of_the_engine() -> None:
    cards = EngineCards("docker run --gpus", count=2)
    for env in ({"devices": "0,1,2"}, {"count": "3"}):
        with pytest.raises(QuotaError, match="docker run --gpus"):
            resolve_request(Words(**{**SILENT, "env": env}).read("request", cards), cards=cards)


def test_an_environment_reduces_the_nodes_default_and_never_raises_it() -> None:
    defaults = Defaults(memory_bytes=4 * GIB, cores=20)
    for text, expected in (("2GiB", 2 * GIB), ("40GiB", 4 * GIB)):
        words = Words(**{**SILENT, "pod": {"cores": "10"}, "env": {"memory": text}})
        assert words.read("reduce", None, defaults).memory_bytes == expected


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


@given(st.tuples(SAID, SAID, SAID), ENGINE)
def test_a_trusted_environment_never_exceeds_the_other_sources(
    said: tuple[Mapping[str, str], ...], cards: EngineCards | None
) -> None:
    own, scoped, env = said
    check_env(Words({}, own, scoped, {}, {}), env, "request", cards, None)


@given(st.tuples(SAID, SAID, SAID), ENGINE, NODE)
def test_an_environment_that_may_shrink_never_enlarges_anything(
    said: tuple[Mapping[str, str], ...], cards: EngineCards | None, defaults: Defaults
) -> None:
    own, scoped, env = said
    check_env(Words({}, own, scoped, {}, {}), env, "reduce", cards, defaults)


def check_env(
    words: Words,
    env: Mapping[str, str],
    trust: EnvTrust,
    cards: EngineCards | None,
    defaults: Defaults | None,
) -> None:
    above = words.read(trust, cards, defaults)
    high = most(above, cards)
    assume(high is not None and (high.kind != "none" or trust == "reduce"))
    assert high is not None
    with_env = Words({}, words.own, words.scoped, words.pod, env).read(trust, cards, defaults)
    low = most(with_env, cards)
    if low is not None:
        assert_at_most(low, high, with_env, above)


@given(SAID, SAID)
def test_annotations_of_a_pod_never_exceed_the_containers_own_request(
    own: Mapping[str, str], author: Mapping[str, str]
) -> None:
    above = Words({}, own, {}, {}, {}).read()
    high = most(above, None)
    assume(high is not None and high.kind != "none")
    assert high is not None
    for words in (Words({}, own, author, {}, {}), Words({}, {}, own, author, {})):
        with_author = words.read()
        low = most(with_author, None)
        if low is not None:
            assert_at_most(low, high, with_author, above)


@given(st.tuples(SAID, SAID, SAID, SAID), st.sampled_from(["request", "reduce", "ignore"]))
def test_the_operator_s_value_takes_precedence(
    said: tuple[Mapping[str, str], ...], trust: EnvTrust
) -> None:
    operator, own, scoped, env = said
    assume(not {"memory", "memory-percent"} <= operator.keys())
    quota = Words(operator, own, scoped, {}, env).read(trust)
    for key, text in operator.items():
        assert quota.requested[key].source.kind == "operator"
        assert value(quota, key) == KEYS[key].parse(text)
