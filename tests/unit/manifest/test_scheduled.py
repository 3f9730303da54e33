# SPDX-License-Identifier: Apache-2.0
"""Containers whose share the Kubernetes scheduler allocates: a limit of ours, or a claim."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.manifest import read
from gpushare.manifest.check import check

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


def test_a_claim_of_another_driver_is_still_read(tmp_path: Path) -> None:
    text = with_pods("kubernetes-dra.md")[0].replace(
        "deviceClassName: gpushare", "deviceClassName: hami-core-gpu.project-hami.io"
    )
    file = tmp_path / "claim.yaml"
    file.write_text(text.replace("runtimeClassName: gpushare-dra", "runtimeClassName: other"))
    found = check(read(str(file)), strict=False)
    assert any("HAMi DRA" in finding.key for finding in found.findings)
