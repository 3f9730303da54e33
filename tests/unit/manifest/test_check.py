# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a manifest, by line and with a fix: each case is in findings.txt.

`python -m tests.unit.manifest.test_check` writes that file.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.manifest import read
from gpushare.manifest.check import check
from tests import recorded

RECORDED = Path(__file__).with_name("findings.txt")


def findings(text: str, *, strict: bool) -> list[str]:
    found = check(read("f", text), strict=strict).findings
    return [f"{one.line}:{one.column}: {one}" for one in found]


def said(text: str) -> list[str]:
    """Return what a strict check finds, and a lenient one if that is something else."""
    strict, lenient = (findings(text, strict=strict) for strict in (True, False))
    return [*strict, *(f"lenient: {line}" for line in lenient if lenient != strict)]


@pytest.mark.parametrize("case", recorded.cases(RECORDED), ids=str)
def test_each_finding_is_where_and_what_it_should_be(case: recorded.RecordedCase) -> None:
    assert said(case.text) == case.said


DOCS = Path(__file__).parents[3] / "docs/how-to"


def blocks(page: str) -> list[str]:
    """Return the manifests of a page."""
    text = (DOCS / page).read_text()
    return [part.partition("```")[0] for part in text.split("```yaml\n")[1:]]


def with_pods(page: str) -> list[str]:
    return [text for text in blocks(page) if "containers:" in text]


@pytest.mark.parametrize(
    "page",
    ["kubernetes.md", "kubernetes-annotations.md", "kubernetes-plugin.md", "kubernetes-dra.md"],
)
def test_the_pods_of_the_how_tos_request_a_gpu_and_have_no_finding(
    tmp_path: Path, page: str
) -> None:
    texts = [text for text in with_pods(page) if "nvidia.com/" not in text]
    assert texts
    for number, text in enumerate(texts):
        file = tmp_path / f"{number}.yaml"
        file.write_text(text)
        found = check(read(str(file)), strict=False)
        assert (found.findings, found.asking) == ((), found.containers)


if __name__ == "__main__":
    recorded.write(RECORDED, recorded.cases(RECORDED), said)
