# SPDX-License-Identifier: Apache-2.0
"""What a reader sees of a scenario, and what its exit status is made of."""

from __future__ import annotations

import io

from gpushare.verify import Check, Report


def test_a_claim_that_does_not_hold_shows_what_was_seen() -> None:
    stream = io.StringIO()
    report = Report(stream)
    report.check("the sky is green", False, {"sky": "blue"})
    assert stream.getvalue() == "  FAILED  the sky is green: {'sky': 'blue'}\n"
    assert report.checks == [Check("the sky is green", False, "{'sky': 'blue'}")]


def test_nothing_claimed_is_nothing_held() -> None:
    assert not Report().held
    assert Report(checks=[Check("one", held=True)]).held
    assert not Report(checks=[Check("one", held=True), Check("two", held=False)]).held


def test_the_summary_counts_what_held() -> None:
    checks = [Check("one", held=True), Check("two", held=False), Check("three", held=True)]
    assert Report(checks=checks).summary == "2 of 3 claims held"


def test_a_command_can_be_typed_as_it_is_shown() -> None:
    stream = io.StringIO()
    Report(stream).command(["docker", "run", "-e", "A=two words"])
    assert stream.getvalue() == "$ docker run -e 'A=two words'\n"


def test_colour_is_only_where_it_is_wanted() -> None:
    plain, coloured = io.StringIO(), io.StringIO()
    Report(plain).title("Step")
    Report(coloured, colour=True).title("Step")
    assert "\033" not in plain.getvalue()
    assert "\033[1m" in coloured.getvalue()
