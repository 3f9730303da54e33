# SPDX-License-Identifier: Apache-2.0
import pytest

from gpushare.quota import Cards, Defaults, Given, QuotaError, give, read_quota, refuse_whole

GIB = 1 << 30
GPUS = Cards("docker run --gpus", count=2)


def given(
    env: dict[str, str] | None = None,
    *,
    visible: str | None = None,
    cards: Cards | None = None,
    defaults: Defaults | None = None,
) -> Given:
    variables = {f"GPUSHARE_{name}": value for name, value in (env or {}).items()}
    quota = read_quota({}, variables, cards=cards, defaults=defaults)
    return give(quota, visible=visible, cards=cards)


def refusal(env: dict[str, str], cards: Cards | None = None) -> str:
    with pytest.raises(QuotaError) as caught:
        given(env, cards=cards)
    return str(caught.value)


def test_nothing_asked_gives_nothing_and_says_what_to_add() -> None:
    nothing = given()
    assert (nothing.kind, nothing.count) == ("none", 0)
    assert nothing.why == (
        "no GPU was asked for; to get one, "
        "add -e GPUSHARE_MEMORY=4GiB (in a pod: the annotation gpushare.io/memory=4GiB)"
    )


def test_the_images_visible_devices_alone_give_nothing() -> None:
    nothing = given(visible="all")
    assert nothing.kind == "none"
    assert nothing.why == (
        'NVIDIA_VISIBLE_DEVICES="all" alone asks for no GPU; to get one, '
        "add -e GPUSHARE_MEMORY=4GiB (in a pod: the annotation gpushare.io/memory=4GiB)"
    )


def test_env_that_is_not_trusted_is_the_reason_for_nothing() -> None:
    quota = read_quota({}, {"GPUSHARE_MEMORY": "4GiB"}, trust="shrink")
    nothing = give(quota)
    assert nothing.kind == "none"
    assert "may only shrink" in nothing.why
    assert "gpushare.io/memory=4GiB" in nothing.why


@pytest.mark.parametrize(
    ("env", "cards", "count", "devices"),
    [
        ({}, GPUS, 2, ()),
        ({}, Cards("--gpus", all_cards=True), None, ()),
        ({}, Cards("--gpus", devices=("GPU-1", "GPU-2")), 2, ("GPU-1", "GPU-2")),
        ({"COUNT": "3"}, None, 3, ()),
        ({"DEVICES": "1"}, None, 1, ("1",)),
        ({"CORES": "100"}, None, 1, ()),
        ({"CORES": "100", "COUNT": "2"}, None, 2, ()),
    ],
)
def test_cards_without_memory_are_whole_cards(
    env: dict[str, str], cards: Cards | None, count: int | None, devices: tuple[str, ...]
) -> None:
    whole = given(env, cards=cards)
    assert (whole.kind, whole.count, whole.devices) == ("whole", count, devices)


def test_nodes_in_the_spec_name_cards_by_minor_number() -> None:
    whole = given(cards=Cards("CDI", minors=(1, 3)))
    assert (whole.kind, whole.count, whole.minors) == ("whole", 2, (1, 3))


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


def test_an_engines_cards_with_memory_are_shares_of_that_many() -> None:
    share = given({"MEMORY": "4GiB"}, cards=GPUS)
    assert (share.kind, share.count, share.memory_bytes) == ("shared", 2, 4 * GIB)


def test_defaults_fill_memory_for_cores_and_for_cards_where_the_node_says_so() -> None:
    defaults = Defaults(memory_bytes=2 * GIB)
    assert given({"CORES": "30"}, defaults=defaults).memory_bytes == 2 * GIB
    assert given({"COUNT": "1"}, defaults=defaults).kind == "whole"
    share = given(cards=GPUS, defaults=Defaults(memory_bytes=2 * GIB, whole_is_share=True))
    assert (share.kind, share.memory_bytes, share.count) == ("shared", 2 * GIB, 2)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            {"CORES": "30"},
            (
                'env GPUSHARE_CORES: "30" asks for cores, and for no memory; '
                "add gpushare.io/memory or GPUSHARE_MEMORY, e.g. 4GiB"
            ),
        ),
        (
            {"MEMORY": "4GiB", "MEMORY_PERCENT": "50"},
            (
                'env GPUSHARE_MEMORY: "4GiB" and env GPUSHARE_MEMORY_PERCENT both say memory; '
                "keep one of the two"
            ),
        ),
        (
            {"MEMORY": "4GiB", "MEMORY_LIMIT": "2GiB"},
            'env GPUSHARE_MEMORY_LIMIT: "2GiB" is below memory 4GiB; write 4GiB or more',
        ),
        (
            {"MEMORY_LIMIT": "2GiB"},
            (
                'env GPUSHARE_MEMORY_LIMIT: "2GiB" is a burst above a memory that is not asked; '
                "add gpushare.io/memory or GPUSHARE_MEMORY, the part that is guaranteed"
            ),
        ),
        (
            {"DEVICES": "0,1", "COUNT": "3"},
            (
                'env GPUSHARE_COUNT: "3" is not the number of cards that env GPUSHARE_DEVICES '
                "names; write 2, or leave count out"
            ),
        ),
        (
            {"MEMORY": "4GiB", "POLICY": "fixed-share"},
            (
                'env GPUSHARE_POLICY: "fixed-share" needs cores, and none are asked; '
                "add gpushare.io/cores or GPUSHARE_CORES, e.g. 30"
            ),
        ),
        (
            {"WEIGHT": "3"},
            (
                'env GPUSHARE_WEIGHT: "3" comes with no memory and no card; '
                "add -e GPUSHARE_MEMORY=4GiB (in a pod: the annotation gpushare.io/memory=4GiB)"
            ),
        ),
    ],
)
def test_what_contradicts_itself_or_lacks_a_part_is_refused(
    env: dict[str, str], message: str
) -> None:
    assert refusal(env) == message


def test_a_key_and_an_engine_that_say_different_cards_are_refused() -> None:
    assert refusal({"COUNT": "1"}, GPUS) == (
        'env GPUSHARE_COUNT: "1" and docker run --gpus say different numbers of cards; '
        "keep one of the two"
    )
    assert refusal({"DEVICES": "0"}, Cards("docker run --gpus", devices=("1",))) == (
        'env GPUSHARE_DEVICES: "0" and docker run --gpus both name cards; keep one of the two'
    )
    assert refusal({"DEVICES": "0"}, GPUS) == (
        'env GPUSHARE_DEVICES: "0" and docker run --gpus say different numbers of cards; '
        "keep one of the two"
    )


def test_whole_cards_that_cannot_be_given_are_refused_with_the_syntax_of_a_share() -> None:
    error = refuse_whole(read_quota({}, {}), GPUS, "asks for whole cards, and card 0 is shared")
    assert str(error) == (
        "docker run --gpus: asks for whole cards, and card 0 is shared; for a share, "
        "add -e GPUSHARE_MEMORY=4GiB (in a pod: the annotation gpushare.io/memory=4GiB)"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": "6G"}, '--memory: "6G" has two readings: 6 GiB = 6442450944 bytes'),
        ({"cores": "30"}, '--cores: "30" asks for cores, and for no memory; add --memory, e.g.'),
        ({"weight": "3"}, '--weight: "3" comes with no memory and no card; add --memory 4GiB'),
        (
            {"memory": "4GiB", "policy": "fixed-share"},
            '--policy: "fixed-share" needs cores, and none are asked; add --cores, e.g. 30',
        ),
    ],
)
def test_a_command_line_is_answered_in_its_own_words(options: dict[str, str], message: str) -> None:
    with pytest.raises(QuotaError) as refused:
        give(read_quota({}, {}, options=options))
    assert str(refused.value).startswith(message)
