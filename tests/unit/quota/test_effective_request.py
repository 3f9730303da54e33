# SPDX-License-Identifier: Apache-2.0
import pytest

from gpushare.quota.effective_request import (
    Defaults,
    EffectiveRequest,
    resolve_request,
    whole_cards_refused,
)
from gpushare.quota.errors import QuotaError
from gpushare.quota.parse import parse_request
from gpushare.quota.request import EngineCards, visible_devices

GIB = 1 << 30
GPUS = EngineCards("docker run --gpus", count=2)


def given(
    env: dict[str, str] | None = None,
    *,
    visible: str | None = None,
    cards: EngineCards | None = None,
    defaults: Defaults | None = None,
) -> EffectiveRequest:
    variables = {f"GPUSHARE_{name}": value for name, value in (env or {}).items()}
    quota = parse_request({}, variables, cards=cards, defaults=defaults).valid()
    return resolve_request(quota, visible=visible, cards=cards)


def refusal(env: dict[str, str], cards: EngineCards | None = None) -> str:
    with pytest.raises(QuotaError) as caught:
        given(env, cards=cards)
    return str(caught.value)


def test_without_a_request_the_notes_say_what_to_add() -> None:
    nothing = given()
    assert (nothing.kind, nothing.count) == ("none", 0)
    assert nothing.why == (
        "no GPU was requested; to get one, "
        "add -e GPUSHARE_MEMORY=4GiB (in a pod: the annotation gpushare.io/memory=4GiB)"
    )


def test_the_images_visible_devices_alone_give_nothing() -> None:
    nothing = given(visible="all")
    assert nothing.kind == "none"
    assert nothing.why == (
        'NVIDIA_VISIBLE_DEVICES="all" alone requests no GPU; to get one, '
        "add -e GPUSHARE_MEMORY=4GiB (in a pod: the annotation gpushare.io/memory=4GiB)"
    )


def test_env_that_is_not_trusted_is_the_reason_for_nothing() -> None:
    quota = parse_request({}, {"GPUSHARE_MEMORY": "4GiB"}, trust="reduce").valid()
    nothing = resolve_request(quota)
    assert nothing.kind == "none"
    assert "may only shrink" in nothing.why
    assert "gpushare.io/memory=4GiB" in nothing.why


@pytest.mark.parametrize(
    ("env", "cards", "count", "devices"),
    [
        ({}, GPUS, 2, ()),
        ({}, EngineCards("--gpus", all_cards=True), None, ()),
        ({}, EngineCards("--gpus", devices=("GPU-1", "GPU-2")), 2, ("GPU-1", "GPU-2")),
        ({"COUNT": "3"}, None, 3, ()),
        ({"DEVICES": "1"}, None, 1, ("1",)),
        ({"CORES": "100"}, None, 1, ()),
        ({"CORES": "100", "COUNT": "2"}, None, 2, ()),
    ],
)
def test_cards_without_memory_are_whole_cards(
    env: dict[str, str], cards: EngineCards | None, count: int | None, devices: tuple[str, ...]
) -> None:
    whole = given(env, cards=cards)
    assert (whole.kind, whole.count, whole.devices) == ("exclusive", count, devices)


def test_memory_alone_is_best_effort() -> None:
    share = given({"MEMORY": "4GiB"})
    assert (share.kind, share.memory_bytes, share.cores) == ("shared", 4 * GIB, 0)
    assert (share.policy, share.count) == ("best-effort", 1)


def test_memory_as_a_percentage_stays_one_until_the_card_is_known() -> None:
    share = given({"MEMORY_PERCENT": "50"})
    assert (share.kind, share.memory_bytes, share.memory_percent) == ("shared", None, 50)


def test_memory_and_cores_are_a_fixed_share() -> None:
    share = given({"MEMORY": "4GiB", "CORES": "30"})
    assert (share.kind, share.cores, share.policy) == ("shared", 30, "fixed-share")


def test_the_nodes_policy_and_the_containers_own_come_before_fixed_share() -> None:
    node = Defaults(policy="burst-share")
    assert given({"MEMORY": "4GiB", "CORES": "30"}, defaults=node).policy == "burst-share"
    own = given({"MEMORY": "4GiB", "CORES": "30", "POLICY": "best-effort"}, defaults=node)
    assert own.policy == "best-effort"


def test_defaults_fill_memory_for_cores_and_for_cards_where_the_node_says_so() -> None:
    defaults = Defaults(memory_bytes=2 * GIB)
    assert given({"CORES": "30"}, defaults=defaults).memory_bytes == 2 * GIB
    assert given({"COUNT": "1"}, defaults=defaults).kind == "exclusive"
    share = given(cards=GPUS, defaults=Defaults(memory_bytes=2 * GIB, shared_by_default=True))
    assert (share.kind, share.memory_bytes, share.count) == ("shared", 2 * GIB, 2)


INCOMPLETE = """\
CORES=30: env GPUSHARE_CORES=30: requests cores without memory.
    Add gpushare.io/memory or GPUSHARE_MEMORY, e.g. 4GiB.
MEMORY=4GiB MEMORY_PERCENT=50: env GPUSHARE_MEMORY=4GiB:
    conflicts with env GPUSHARE_MEMORY_PERCENT: both set memory. Keep one of the two.
MEMORY=4GiB MEMORY_LIMIT=2GiB: env GPUSHARE_MEMORY_LIMIT=2GiB: below memory 4GiB.
    Write 4GiB or more.
MEMORY_LIMIT=2GiB: env GPUSHARE_MEMORY_LIMIT=2GiB: sets a burst limit,
    but memory is not requested. Add gpushare.io/memory or GPUSHARE_MEMORY, the guaranteed part.
DEVICES=0,1 COUNT=3: env GPUSHARE_COUNT=3: not the number of cards in env GPUSHARE_DEVICES.
    Write 2, or omit count.
MEMORY=4GiB POLICY=fixed-share: env GPUSHARE_POLICY=fixed-share: requires cores,
    but none are requested. Add gpushare.io/cores or GPUSHARE_CORES, e.g. 30.
WEIGHT=3: env GPUSHARE_WEIGHT=3: requires a memory or card request.
    Add -e GPUSHARE_MEMORY=4GiB (in a pod: the annotation gpushare.io/memory=4GiB)."""


@pytest.mark.parametrize("line", INCOMPLETE.replace("\n    ", " ").splitlines())
def test_a_contradictory_or_incomplete_request_is_refused(line: str) -> None:
    words, _, message = line.partition(": ")
    assert refusal(dict(word.split("=") for word in words.split())) == message


def test_a_key_and_an_engine_with_different_cards_are_refused() -> None:
    assert refusal({"COUNT": "1"}, GPUS) == (
        "env GPUSHARE_COUNT=1: conflicts with docker run --gpus: different numbers of cards. "
        "Keep one of the two."
    )
    assert refusal({"DEVICES": "0"}, EngineCards("docker run --gpus", devices=("1",))) == (
        "env GPUSHARE_DEVICES=0: conflicts with docker run --gpus: both name cards. "
        "Keep one of the two."
    )
    assert refusal({"DEVICES": "0"}, GPUS) == (
        "env GPUSHARE_DEVICES=0: conflicts with docker run --gpus: different numbers of cards. "
        "Keep one of the two."
    )


def test_a_refusal_of_exclusive_cards_has_the_syntax_of_a_share() -> None:
    error = whole_cards_refused(
        parse_request({}, {}).valid(), GPUS, "asks for whole cards, and card 0 is shared"
    )
    assert str(error) == (
        "docker run --gpus: asks for whole cards, and card 0 is shared. For a share, "
        "add -e GPUSHARE_MEMORY=4GiB (in a pod: the annotation gpushare.io/memory=4GiB)."
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": "6G"}, "--memory=6G: ambiguous: 6 GiB = 6442450944 bytes"),
        ({"cores": "30"}, "--cores=30: requests cores without memory. Add --memory, e.g."),
        ({"weight": "3"}, "--weight=3: requires a memory or card request. Add --memory 4GiB."),
        (
            {"memory": "4GiB", "policy": "fixed-share"},
            "--policy=fixed-share: requires cores, but none are requested. Add --cores, e.g. 30.",
        ),
    ],
)
def test_a_command_line_is_answered_with_its_options(options: dict[str, str], message: str) -> None:
    with pytest.raises(QuotaError) as refused:
        resolve_request(parse_request({}, {}, options=options).valid())
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("value", ["", "void", "none", " ", None])
def test_values_of_visible_devices_that_ask_for_nothing(value: str | None) -> None:
    assert visible_devices({} if value is None else {"NVIDIA_VISIBLE_DEVICES": value}) is None
    assert visible_devices({"NVIDIA_VISIBLE_DEVICES": "GPU-4f1c,1"}) == "GPU-4f1c,1"
