# SPDX-License-Identifier: Apache-2.0
"""What a reader sees of a scenario, and what its exit status is made of."""

from __future__ import annotations

import io

from gpushare.verify import CheckResult, Report


def test_a_false_claim_is_shown_with_its_evidence() -> None:
    stream = io.StringIO()
    report = Report(stream)
    report.check("the sky is green", False, {"sky": "blue"})
    assert stream.getvalue() == "  FAIL    the sky is green: {'sky': 'blue'}\n"
    assert report.checks == [CheckResult("the sky is green", False, "{'sky': 'blue'}")]


def test_a_report_without_claims_does_not_pass() -> None:
    assert not Report().passed
    assert Report(checks=[CheckResult("one", passed=True)]).passed
    assert not Report(
        checks=[CheckResult("one", passed=True), CheckResult("two", passed=False)]
    ).passed


def test_the_summary_counts_the_claims_that_hold() -> None:
    checks = [
        CheckResult("one", passed=True),
        CheckResult("two", passed=False),
        CheckResult("three", passed=True),
    ]
    assert Report(checks=checks).summary == "2 of 3 checks passed"


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
