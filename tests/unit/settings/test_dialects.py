# SPDX-License-Identifier: Apache-2.0
"""`dialects` in gpushare.yaml."""

from pathlib import Path

import pytest

from gpushare.cli.config import node_rows
from gpushare.config import Config, ConfigError, parse
from gpushare.quota.errors import QuotaError
from gpushare.quota.parse import parse_request
from gpushare.quota.request_policy import Dialects
from gpushare.settings.schema import ConfigDocument

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
    found = dialects("dialects:\n  mode: strict\n  accept: [hami]\n  unaccepted: ignore\n")
    assert found == Dialects("strict", frozenset({"hami"}), "ignore")
    assert dialects("dialects: {accept: []}\n").accept == frozenset()


def test_a_namespace_is_an_exception_key_by_key() -> None:
    text = "dialects: {accept: [hami]}\nnamespaces:\n  team:\n    dialects: {mode: strict}\n"
    assert dialects(text, "team") == Dialects("strict", frozenset({"hami"}))
    assert dialects(text).mode == "lenient"


def test_a_refusal_names_the_line_that_leaves_the_dialect_out() -> None:
    with pytest.raises(QuotaError, match=r"dialects\.accept, /etc/gpushare/gpushare\.yaml:2\)"):
        parse_request(
            {},
            {"CUDA_DEVICE_MEMORY_LIMIT": "4g"},
            dialects=dialects("dialects:\n  accept: []\n"),
        ).valid()


def test_the_effective_dialects_are_shown_with_their_line() -> None:
    rows = {
        row.key: row for row in node_rows(ConfigDocument("dialects:\n  accept: [hami]\n", FILE))
    }
    assert rows["dialects.accept"].value == ["hami"]
    assert rows["dialects.accept"].origin == f"{FILE}:2"
    assert (rows["dialects.mode"].value, rows["dialects.mode"].origin) == ("lenient", "default")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dialects: {accept: [hamy]}\n", '"hamy" is not a dialect; did you mean hami?'),
        (
            "dialects: {accept: [x-y-z]}\n",
            '"x-y-z" is not a dialect; the dialects are nvidia, hami, ',
        ),
        (
            "dialects: {accept: some}\n",
            '"some" has an invalid format; write e.g. [hami, kai], or all',
        ),
        ("dialects: {accept: 5}\n", "5 is not a list or text; write e.g. [hami, kai], or all"),
        ("dialects: {mode: loose}\n", '"loose" is not a valid value; write one of strict'),
        ("users: {dialects: {mode: strict}}\n", "users.dialects: unknown key"),
    ],
)
def test_an_error_is_reported_with_its_fix(text: str, said: str) -> None:
    assert said in problem(text)


def test_a_mistake_in_the_nodes_file_is_reported_once() -> None:
    text = "dialects: {accept: [hamy]}\nnamespaces:\n  team:\n    trust: {env: request}\n"
    assert problem(text).count("hamy") == 1
