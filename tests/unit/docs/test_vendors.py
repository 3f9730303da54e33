# SPDX-License-Identifier: Apache-2.0
"""The page of what runs unchanged has a true row for each manifest of the corpus."""

from __future__ import annotations

import json
import re

import pytest

from gpushare.protocol.kubernetes import NodeMode
from gpushare.quota.dialects import DIALECTS
from tests.admission import mutate
from tests.admission.rendered import translation
from tests.corpus import results
from tests.corpus.cases import CASES, CorpusManifest
from tests.corpus.pods import converted, on_node, pods, pods_of

from . import markdown

PAGE = (markdown.ROOT / "docs/reference/vendors.md").read_text(encoding="utf-8")
IN_CLUSTER = [case for case in CASES if pods(case)]
DEPLOYMENT, KSERVE = (
    next(case for case in CASES if str(case) == name)
    for name in ("hami/deployment", "nvidia/kserve")
)


def row(case: CorpusManifest) -> tuple[str, ...]:
    """Return the cells of the only row of a manifest that says what becomes of it."""
    lines = [line.strip("| ").split(" | ") for line in PAGE.splitlines()]
    (found,) = (cells for cells in lines if len(cells) > 2 and cells[1] == f"`{case}`")
    return tuple(found)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_manifest_has_a_row_that_is_true(case: CorpusManifest) -> None:
    cells = (
        [results.in_mode(case, mode) for mode in results.MODES]
        if pods(case)
        else [results.outside(case)]
    )
    assert row(case) == (*results.named(case), *cells, results.by_convert(case))


def test_each_reason_in_the_tables_is_explained() -> None:
    used = {cell.removeprefix("no: ") for case in CASES for cell in row(case) if "no: " in cell}
    explained = re.findall(r"(?m)^\| ([^|]*) \|", PAGE.partition("## Reasons")[2])
    assert used == set(explained[2:])


@pytest.mark.parametrize("mode", results.MODES)
def test_a_policy_that_misses_a_key_makes_a_row_untrue(mode: NodeMode) -> None:
    text = json.dumps(results.policies(mode))
    assert '\\"nvidia.com/gpumem\\"' in text
    wrong = json.loads(text.replace('\\"nvidia.com/gpumem\\"', '\\"nvidia.com/other\\"'))
    assert results.result(DEPLOYMENT, mode, results.policies(mode)) == results.UNCHANGED
    try:
        found = results.result(DEPLOYMENT, mode, wrong)
    except AssertionError:
        return
    assert found != results.UNCHANGED


@pytest.mark.parametrize("case", IN_CLUSTER, ids=str)
def test_what_nvidias_plugin_serves_runs_unchanged_by_a_value(case: CorpusManifest) -> None:
    if "NVIDIA's plugin" in results.in_mode(case, "annotations"):
        assert results.result(case, "annotations", [translation(nvidia=True)]) == results.UNCHANGED
        assert (
            results.result(KSERVE, "plugin", [translation("plugin", nvidia=True)])
            != results.UNCHANGED
        )


@pytest.mark.parametrize("case", IN_CLUSTER, ids=str)
def test_nothing_runs_unchanged_in_the_mode_dra(case: CorpusManifest) -> None:
    assert not [one for one in results.policies("dra") if one["kind"].startswith("Mutating")]
    for one in (pods(case), converted(case) or []):
        assert all(isinstance(x, str) or x["kind"] == "none" for x in on_node(one, "dra"))


def test_the_how_to_shows_what_the_policy_makes_of_hamis_manifest() -> None:
    text = (markdown.ROOT / "docs/how-to/kubernetes.md").read_text()
    (block,) = (found for _, found in markdown._BLOCK.findall(text) if "nvidia.com/gpumem" in found)
    (policy,) = (
        one for one in results.policies("plugin") if one["kind"] == "MutatingAdmissionPolicy"
    )
    (pod,) = (mutate(policy, one) for one in pods_of("hami.yaml", block))
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"] == {"gpushare.io/memory-gib": "16"}
    assert "`gpushare.io/memory-gib: 16`, and 40 % of the compute" in " ".join(text.split())
    (found,) = on_node([pod], "plugin")
    assert isinstance(found, dict)
    assert (found["memory_bytes"], found["cores"]) == (16 << 30, 40)
    assert f"manifests of {len(DIALECTS)} systems" in " ".join(text.split())
