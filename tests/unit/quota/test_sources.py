# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.quota import Quota, QuotaError, read_quota
from gpushare.quota.keys import KEYS

GIB = 1 << 30
POD = {"io.kubernetes.cri.container-name": "train", "io.kubernetes.cri.container-type": "container"}


def refusal(annotations: dict[str, str], env: dict[str, str]) -> str:
    with pytest.raises(QuotaError) as caught:
        read_quota(annotations, env)
    return str(caught.value)


def test_nothing_asked_is_an_empty_quota() -> None:
    assert read_quota({"other/annotation": "x"}, {"PATH": "/bin"}) == Quota()


def test_every_key_is_read_from_annotations_and_from_env() -> None:
    texts = {
        "memory": "4GiB",
        "memory-percent": "50",
        "memory-limit": "8GiB",
        "cores": "30",
        "count": "2",
        "devices": "0,GPU-4f1c",
        "allow": "A100,H200",
        "deny": "T4",
        "policy": "burst-share",
        "weight": "3",
        "priority": "0",
        "class": "offline",
        "placement": "spread",
        "numa": "bind",
        "oversubscribe": "host",
        "backend": "interposer",
    }
    assert set(texts) == set(KEYS)
    for asked in (
        read_quota({KEYS[name].annotation: text for name, text in texts.items()}, {}),
        read_quota({}, {KEYS[name].env: text for name, text in texts.items()}),
    ):
        assert (asked.memory_bytes, asked.memory_limit_bytes) == (4 * GIB, 8 * GIB)
        assert (asked.memory_percent, asked.cores, asked.count) == (50, 30, 2)
        assert asked.devices == ("0", "GPU-4f1c")
        assert (asked.allow, asked.deny) == (("A100", "H200"), ("T4",))
        assert (asked.policy, asked.weight, asked.priority) == ("burst-share", 3, 0)
        assert (asked.class_, asked.placement) == ("offline", "spread")
        assert (asked.oversubscribe, asked.backend) == ("host", "interposer")
        assert {name: value.text for name, value in asked.asked.items()} == texts


def test_a_value_is_shown_with_its_source() -> None:
    annotations = {"gpushare.io/memory": "4GiB", "gpushare.io/cores": "40"}
    asked = read_quota(annotations, {"GPUSHARE_CORES": "30"})
    assert asked.rows() == {"memory": "4GiB annotation", "cores": "30 env"}
    assert str(asked.asked["memory"].source) == "annotation gpushare.io/memory"
    assert str(asked.asked["cores"].source) == "env GPUSHARE_CORES"


@pytest.mark.parametrize(
    ("annotations", "env", "message"),
    [
        (
            {"gpushare.io/memory": "4Q"},
            {},
            'annotation gpushare.io/memory: "4Q" is not a size; write e.g. 4GiB',
        ),
        (
            {},
            {"GPUSHARE_MEMORY": "4G"},
            (
                'env GPUSHARE_MEMORY: "4G" has two readings: 4 GiB = 4294967296 bytes, '
                "or 4000000000 bytes; write 4GiB or 4000000000B"
            ),
        ),
        (
            {},
            {"GPUSHARE_CORES": "0"},
            (
                'env GPUSHARE_CORES: "0" is not a share of a card in percent; '
                "write a whole number from 1 to 100"
            ),
        ),
        (
            {"gpushare.io/cores": "101"},
            {},
            (
                'annotation gpushare.io/cores: "101" is not a share of a card in percent; '
                "write a whole number from 1 to 100"
            ),
        ),
        (
            {"gpushare.io/memroy": "4GiB"},
            {},
            (
                'annotation gpushare.io/memroy: "4GiB" is for a key that gpushare does not know; '
                "did you mean gpushare.io/memory?"
            ),
        ),
        (
            {},
            {"GPUSHARE_MEMORY_PERCENTAGE": "50"},
            (
                'env GPUSHARE_MEMORY_PERCENTAGE: "50" is for a key that gpushare does not know; '
                "did you mean GPUSHARE_MEMORY_PERCENT?"
            ),
        ),
        (
            {},
            {"GPUSHARE_memory": "4GiB"},
            (
                'env GPUSHARE_memory: "4GiB" is for a key that gpushare does not know; '
                "did you mean GPUSHARE_MEMORY?"
            ),
        ),
        (
            {"gpushare.io/policy": "fair"},
            {},
            (
                'annotation gpushare.io/policy: "fair" is not one of its values; '
                "write fixed-share, burst-share, best-effort or native-burst-share"
            ),
        ),
        (
            {"gpushare.io/devices": "first"},
            {},
            (
                'annotation gpushare.io/devices: "first" is not a list of cards; '
                "write indices or UUIDs, e.g. 0,2 or GPU-4f1c..."
            ),
        ),
        (
            {"gpushare.io/devices": "0,0"},
            {},
            'annotation gpushare.io/devices: "0,0" names something twice; write each name once',
        ),
        (
            {"gpushare.io/count": "17"},
            {},
            (
                'annotation gpushare.io/count: "17" is not a number of cards; '
                "write a whole number from 1 to 16"
            ),
        ),
        (
            {"gpushare.io/container.app.memory": "4GiB"},
            {},
            (
                'annotation gpushare.io/container.app.memory: "4GiB" is for container "app" of '
                "a pod, and this container is in none; write gpushare.io/memory"
            ),
        ),
        (
            {"gpushare.io/container.memory": "4GiB"},
            {},
            (
                'annotation gpushare.io/container.memory: "4GiB" names no container or no key; '
                "write gpushare.io/container.NAME.memory"
            ),
        ),
        (
            {"gpushare.io/memory": 'x"\n\x1b[31m'},
            {},
            'annotation gpushare.io/memory: "x\\"\\n\\x1b[31m" is not a size; write e.g. 4GiB',
        ),
    ],
)
def test_a_refusal_names_key_value_rule_and_fix(
    annotations: dict[str, str], env: dict[str, str], message: str
) -> None:
    assert refusal(annotations, env) == message


def test_a_key_like_no_other_is_answered_with_the_list_of_keys() -> None:
    assert refusal({"gpushare.io/zzz": "1"}, {}).endswith("the keys are " + ", ".join(KEYS))


def test_a_refusal_is_one_line_whatever_the_key() -> None:
    assert "\n" not in refusal({"gpushare.io/me\nmory": "4GiB"}, {})


@pytest.mark.parametrize(
    "name",
    [
        "GPUSHARE_LOG",
        "GPUSHARE_DISABLE",
        "GPUSHARE_SOCKET",
        "GPUSHARE_SIM_TRACE",
        "GPUSHARE_SERVICE_HOST",
        "GPUSHARE_WEB_SERVICE_PORT_HTTP",
        "GPUSHARE_PORT",
        "GPUSHARE_PORT_80_TCP_ADDR",
    ],
)
def test_variables_that_ask_for_nothing_are_left_alone(name: str) -> None:
    assert read_quota({}, {name: "tcp://10.0.0.1:80"}) == Quota()


def test_an_annotation_is_above_env_which_may_only_shrink_it() -> None:
    smaller = read_quota({"gpushare.io/memory": "8GiB"}, {"GPUSHARE_MEMORY": "4GiB"})
    assert smaller.memory_bytes == 4 * GIB
    larger = read_quota({"gpushare.io/memory": "8GiB"}, {"GPUSHARE_MEMORY": "16GiB"})
    assert larger.memory_bytes == 8 * GIB
    assert larger.notes == (
        (
            'env GPUSHARE_MEMORY "16GiB" was not taken: '
            'annotation gpushare.io/memory "8GiB" is above it'
        ),
    )


def test_the_operator_is_above_all() -> None:
    asked = read_quota(
        {"gpushare.io/memory": "8GiB"}, {"GPUSHARE_MEMORY": "16GiB"}, operator={"memory": "2GiB"}
    )
    assert asked.memory_bytes == 2 * GIB
    assert asked.asked["memory"].source.kind == "operator"


@pytest.mark.parametrize("memory", ["GPUSHARE_MEMORY", "GPUSHARE_MEMORY_PERCENT"])
def test_what_the_operator_set_stands_and_the_rest_stays_as_it_was_asked(memory: str) -> None:
    env = {
        memory: "4GiB" if memory == "GPUSHARE_MEMORY" else "10",
        "GPUSHARE_COUNT": "2",
        "GPUSHARE_CORES": "30",
    }
    asked = read_quota({}, env, operator={"memory": "6GiB"})
    assert (asked.memory_bytes, asked.memory_percent) == (6 * GIB, None)
    assert (asked.count, asked.cores) == (2, 30)
    assert 'was not taken: operator memory "6GiB" is above it' in asked.notes[0]


def test_memory_in_another_form_does_not_get_around_a_grant() -> None:
    asked = read_quota({"gpushare.io/memory": "1GiB"}, {"GPUSHARE_MEMORY_PERCENT": "100"})
    assert (asked.memory_bytes, asked.memory_percent) == (GIB, None)
    assert "says memory in the other form" in asked.notes[0]


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
    asked = read_quota({"gpushare.io/memory": "1GiB"}, {name: value})
    assert set(asked.asked) == {"memory"}
    assert "it would enlarge what annotation gpushare.io/memory grants" in asked.notes[0]


def test_under_kubernetes_env_alone_asks_for_nothing() -> None:
    asked = read_quota(POD, {"GPUSHARE_MEMORY": "4GiB"})
    assert not asked.asked
    assert asked.notes == (
        (
            'env GPUSHARE_MEMORY "4GiB" was not taken: '
            "the environment may only shrink what an annotation grants (trust.env)"
        ),
    )


def test_trust_decides_what_env_may_do() -> None:
    env = {"GPUSHARE_MEMORY": "4GiB"}
    assert read_quota({}, env, trust="ask").memory_bytes == 4 * GIB
    assert read_quota({}, env, trust="shrink").memory_bytes is None
    ignored = read_quota({"gpushare.io/memory": "8GiB"}, env, trust="ignore")
    assert ignored.memory_bytes == 8 * GIB
    assert ignored.notes == ("GPUSHARE_MEMORY was not read: trust.env is ignore",)


@given(st.dictionaries(st.text(max_size=12).map(lambda t: "GPUSHARE_" + t), st.text(max_size=12)))
def test_any_environment_is_read_or_refused_in_one_line(env: dict[str, str]) -> None:
    fault = ""
    try:
        read_quota({}, env)
    except QuotaError as error:
        fault = str(error)
    assert fault.isprintable()
