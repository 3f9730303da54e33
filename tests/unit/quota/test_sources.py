# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.quota.errors import QuotaError
from gpushare.quota.keys import KEYS, from_record, parse_change
from gpushare.quota.parse import parse_request
from gpushare.quota.request import QuotaRequest, ValueSource, to_record
from gpushare.quota.request_policy import Dialects

GIB = 1 << 30
POD = {"io.kubernetes.cri.container-name": "train", "io.kubernetes.cri.container-type": "container"}


def refusal(annotations: dict[str, str], env: dict[str, str]) -> str:
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


def test_an_error_in_an_annotation_for_another_container_refuses_nothing() -> None:
    annotations = {**POD, "gpushare.io/container.side.memory": "1GiB", "gpushare.io/cores": "lots"}
    parsed = parse_request(annotations, {})
    assert [(one.source.name, one.applies) for one in parsed.diagnostics if one.source] == [
        ("gpushare.io/cores", False)
    ]
    assert not parsed.valid().requested


def test_a_share_cannot_be_changed_into_a_whole_card() -> None:
    assert parse_change({"cores": "99"}).cores == 99
    with pytest.raises(QuotaError, match=r"^--cores=100: a whole card.*Set 99 or less"):
        parse_change({"cores": "100"})


def test_a_recorded_value_keeps_its_source_apart_from_its_text() -> None:
    record = to_record(parse_request({"gpushare.io/memory": "4GiB"}, {}).valid().requested)
    assert record == {"memory": {"value": "4GiB", "source": "annotation"}}
    assert from_record(record)["memory"].source == ValueSource("annotation", "memory")


#: A text of each key, and its value.
TEXTS: dict[str, tuple[str, object]] = {
    "memory": ("4GiB", 4 * GIB),
    "memory-percent": ("50", 50),
    "memory-limit": ("8GiB", 8 * GIB),
    "cores": ("30", 30),
    "count": ("2", 2),
    "devices": ("0,GPU-4f1c", ("0", "GPU-4f1c")),
    "allow": ("A100,H200", ("A100", "H200")),
    "deny": ("T4", ("T4",)),
    "compute-capability": ("8.0+, < 10.0", (">=8.0", "<10.0")),
    "policy": ("burst-share", "burst-share"),
    "weight": ("3", 3),
    "priority": ("0", 0),
    "class": ("offline", "offline"),
    "placement": ("spread", "spread"),
    "numa": ("bind", "bind"),
    "oversubscribe": ("host", "host"),
    "backend": ("interposer", "interposer"),
    "idle-after": ("30m", 1800),
    "time-limit": ("8h", 8 * 3600),
    "wait": ("20s", 20),
}


def test_every_key_is_read_from_annotations_and_from_env() -> None:
    assert set(TEXTS) == set(KEYS) - {"profile"}  # which stands for some of them
    for asked in (
        parse_request({KEYS[name].annotation: text for name, (text, _) in TEXTS.items()}, {}),
        parse_request({}, {KEYS[name].env: text for name, (text, _) in TEXTS.items()}),
    ):
        found = asked.valid()
        for name, (text, value) in TEXTS.items():
            assert getattr(found, KEYS[name].field) == value, name
            assert found.requested[name].text == text


REFUSALS = """\
annotation gpushare.io/memory=4Q: not a size. Write e.g. 4GiB.
env GPUSHARE_MEMORY=4G: ambiguous: 4 GiB = 4294967296 bytes, or 4000000000 bytes.
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
    assert refusal(*({name: text} if where == one else {} for one in ("annotation", "env"))) == (
        message
    )


def test_a_refusal_escapes_what_a_terminal_would_obey() -> None:
    assert refusal({"gpushare.io/memory": 'x"\n\x1b[31m'}, {}) == (
        'annotation gpushare.io/memory="x\\"\\n\\x1b[31m": not a size. Write e.g. 4GiB.'
    )


def test_a_key_like_no_other_is_answered_with_the_list_of_keys() -> None:
    assert refusal({"gpushare.io/zzz": "1"}, {}).endswith(f"The keys are {', '.join(KEYS)}.")


@pytest.mark.parametrize(
    "name",
    [
        "GPUSHARE_LOG",
        "GPUSHARE_SERVICE_HOST",
        "GPUSHARE_WEB_SERVICE_PORT_HTTP",
        "GPUSHARE_PORT",
        "GPUSHARE_PORT_80_TCP_ADDR",
    ],
)
def test_variables_that_ask_for_nothing_are_left_alone(name: str) -> None:
    assert parse_request({}, {name: "tcp://10.0.0.1:80"}).valid() == QuotaRequest()


@pytest.mark.parametrize("memory", ["GPUSHARE_MEMORY", "GPUSHARE_MEMORY_PERCENT"])
def test_an_override_leaves_the_rest_as_requested(memory: str) -> None:
    env = {
        memory: "4GiB" if memory == "GPUSHARE_MEMORY" else "10",
        "GPUSHARE_COUNT": "2",
        "GPUSHARE_CORES": "30",
    }
    asked = parse_request({}, env, operator={"memory": "6GiB"}).valid()
    assert (asked.memory_bytes, asked.memory_percent) == (6 * GIB, None)
    assert (asked.count, asked.cores) == (2, 30)
    assert 'was not applied: operator memory "6GiB" takes precedence' in asked.notes[0]


def test_memory_in_another_form_does_not_get_around_a_grant() -> None:
    asked = parse_request(
        {"gpushare.io/memory": "1GiB"}, {"GPUSHARE_MEMORY_PERCENT": "100"}
    ).valid()
    assert (asked.memory_bytes, asked.memory_percent) == (GIB, None)
    assert "sets memory in the other form" in asked.notes[0]


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


def test_under_kubernetes_env_alone_asks_for_nothing() -> None:
    asked = parse_request(POD, {"GPUSHARE_MEMORY": "4GiB"}).valid()
    assert not asked.requested
    assert asked.notes == (
        (
            'env GPUSHARE_MEMORY "4GiB" was not applied: '
            "the environment may only shrink what an annotation grants (trust.env)"
        ),
    )


@given(st.dictionaries(st.text(max_size=12).map(lambda t: "GPUSHARE_" + t), st.text(max_size=12)))
def test_any_environment_is_read_or_refused_in_one_line(env: dict[str, str]) -> None:
    fault = ""
    try:
        parse_request({}, env).valid()
    except QuotaError as error:
        fault = str(error)
    assert fault.isprintable()
