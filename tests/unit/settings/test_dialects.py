# SPDX-License-Identifier: Apache-2.0
"""`dialects` in gpushare.yaml."""

from pathlib import Path

import pytest

from gpushare.config import Config, ConfigError, parse
from gpushare.quota import Dialects, QuotaError, read_quota
from gpushare.settings import show
from gpushare.settings.document import Document

FILE = Path("/etc/gpushare/gpushare.yaml")


def dialects(text: str, namespace: str = "") -> Dialects:
    return parse(text, FILE).terms_of(namespace).dialects


def problem(text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        parse(text, FILE)
    return str(refused.value)


def test_a_node_is_lenient_and_takes_all() -> None:
    assert Config().terms.dialects == Dialects("lenient", None, "refuse")
    assert dialects("dialects: {accept: all}\n") == Dialects()


def test_a_node_takes_those_that_it_names() -> None:
    found = dialects("dialects:\n  mode: strict\n  accept: [hami]\n  others: ignore\n")
    assert found == Dialects("strict", frozenset({"hami"}), "ignore")
    assert dialects("dialects: {accept: []}\n").accept == frozenset()


def test_a_namespace_is_an_exception_key_by_key() -> None:
    text = "dialects: {accept: [hami]}\nnamespaces:\n  team:\n    dialects: {mode: strict}\n"
    assert dialects(text, "team") == Dialects("strict", frozenset({"hami"}))
    assert dialects(text).mode == "lenient"


def test_a_refusal_names_the_line_that_leaves_the_dialect_out() -> None:
    with pytest.raises(QuotaError, match=r"dialects\.accept, /etc/gpushare/gpushare\.yaml:2\)"):
        read_quota(
            {},
            {"CUDA_DEVICE_MEMORY_LIMIT": "4g"},
            dialects=dialects("dialects:\n  accept: []\n"),
        )


def test_what_holds_is_shown_with_its_line() -> None:
    rows = {row.key: row for row in show.node(Document("dialects:\n  accept: [hami]\n", FILE))}
    assert rows["dialects.accept"].value == ["hami"]
    assert rows["dialects.accept"].origin == f"{FILE}:2"
    assert (rows["dialects.mode"].value, rows["dialects.mode"].origin) == ("lenient", "default")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dialects: {accept: [hamy]}\n", '"hamy" is no dialect; did you mean hami?'),
        ("dialects: {accept: [x-y-z]}\n", '"x-y-z" is no dialect; there are nvidia, hami, '),
        ("dialects: {accept: some}\n", '"some" is not of its form; write e.g. [hami, kai], or all'),
        ("dialects: {accept: 5}\n", "5 is not a list or text; write e.g. [hami, kai], or all"),
        ("dialects: {mode: loose}\n", '"loose" is not one of its values; write one of strict'),
        ("users: {dialects: {mode: strict}}\n", "users.dialects: no such key"),
    ],
)
def test_what_is_wrong_is_told_with_its_fix(text: str, said: str) -> None:
    assert said in problem(text)


def test_a_mistake_of_the_node_is_told_once() -> None:
    text = "dialects: {accept: [hamy]}\nnamespaces:\n  team:\n    trust: {env: ask}\n"
    assert problem(text).count("hamy") == 1
