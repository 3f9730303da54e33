# SPDX-License-Identifier: Apache-2.0
"""`gpushare explain`: codes and topics, as text and as JSON, with no daemon there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from gpushare import images
from gpushare.cli.text import WIDTH, wrapped

if TYPE_CHECKING:
    from .conftest import Cli


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's engines are not asked."""
    monkeypatch.setattr(images, "installed_engines", list)


def test_a_code_is_shown_with_its_names_causes_and_fixes(cli: Cli) -> None:
    result = cli("explain", "cuda_error_out_of_memory")
    assert result.exit_code == 0
    first, *_ = result.stdout.splitlines()
    assert first == "CUDA_ERROR_OUT_OF_MEMORY (2, cudaErrorMemoryAllocation)"
    for part in ("Cause", "With gpushare", "Solution", "`gpushare why NAME`", "See "):
        assert part in result.stdout


def test_a_number_of_several_tables_names_the_others(cli: Cli) -> None:
    text = cli("explain", "2").stdout
    assert text.startswith("CUDA_ERROR_OUT_OF_MEMORY")
    assert "This is CUDA_ERROR_OUT_OF_MEMORY (CUDA). It can also mean:" in text
    assert "  NVML_ERROR_INVALID_ARGUMENT: " in text
    assert cli("explain", "exit", "2").stdout.startswith("exit-2\n")


def test_without_an_argument_the_topics_are_listed_by_group(cli: Cli) -> None:
    lines = cli("explain").stdout.splitlines()
    for group in ("Requests", "Enforcement", "Manifests", "Vendors", "Versions", "Troubles"):
        assert group in lines
    assert any(line.startswith("  isolation ") for line in lines)
    assert max(map(len, lines)) <= WIDTH


def test_an_unknown_word_is_an_error_with_suggestions(cli: Cli) -> None:
    result = cli("explain", "isolatoin")
    assert result.exit_code == 1
    assert result.stderr.startswith('gpushare: "isolatoin" is unknown. Did you mean ')
    assert "isolation" in result.stderr
    other = cli("explain", "qqqqqq")
    assert (other.exit_code, other.stdout) == (1, "")
    assert "lists the topics" in other.stderr
    assert "no such file, container" in other.stderr


def test_as_json_it_is_the_same_in_parts(cli: Cli) -> None:
    data = json.loads(cli("--json", "explain", "802").stdout)
    assert data["name"] == "CUDA_ERROR_SYSTEM_NOT_READY"
    assert (data["kind"], data["group"], data["number"]) == ("code", "CUDA", 802)
    assert data["also"] == ["cudaErrorSystemNotReady"]
    assert "doctor" in data["do"]
    every = json.loads(cli("explain", "--json").stdout)
    assert {"isolation", "hami", "xid-79", "no-room"} <= {entry["name"] for entry in every}


@pytest.mark.parametrize("word", ["\x1b[31m", "../../etc/passwd", "a" * 5000])
def test_an_argument_cannot_write_to_the_terminal(cli: Cli, word: str) -> None:
    result = cli("explain", word)
    assert result.exit_code == 1
    assert "\x1b" not in result.output
    assert len(result.output) < 400


def test_a_command_in_a_text_stays_on_one_line() -> None:
    text = f"{'word ' * 12}`sudo gpushare set NAME --memory 6GiB` and more"
    lines = list(wrapped(text))
    assert any("`sudo gpushare set NAME --memory 6GiB`" in line for line in lines)
    assert max(map(len, lines)) <= WIDTH
