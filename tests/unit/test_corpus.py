# SPDX-License-Identifier: Apache-2.0
"""Each manifest of the corpus: what its readers make of it, and what holds for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from docs.vendors import REASONS
from gpushare.cli import explain
from gpushare.cli.explain import manifest
from gpushare.cli.text import WIDTH
from gpushare.manifest import read
from gpushare.manifest.check import check
from gpushare.manifest.convert import Converted, convert
from gpushare.manifest.convert import requests as comparison
from gpushare.manifest.convert.targets import TARGETS
from gpushare.manifest.model import ERROR, OUTSIDE, ManifestFile
from gpushare.manifest.request import request_of
from gpushare.quota.dialects import DIALECTS
from tests.corpus import results
from tests.corpus.cases import CASES, FOLDER, CorpusManifest, conversion
from tests.corpus.expected import found, lost, texts
from tests.corpus.pods import converted as converted_pods
from tests.corpus.pods import on_node, pods

IN_CLUSTER = [case for case in CASES if pods(case)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_reader_makes_of_a_manifest_what_is_expected(case: CorpusManifest) -> None:
    """After a change that is meant, `python -m tests.corpus update` writes it."""
    by_itself = {key: value for key, value in case.expected.items() if key != "admitted"}
    assert found(case) == by_itself
    goldens = {target: case.golden(target) for target in TARGETS}
    assert texts(case) == {
        target: path.read_text(encoding="utf-8")
        for target, path in goldens.items()
        if path.exists()
    }
    for target, refused in case.expected["refused"].items():
        assert refused.startswith(f"{case}.yaml:"), target


def test_every_vendor_has_a_manifest_and_every_reason_is_explained() -> None:
    of_no_folder = {
        "egpu": "alibaba",
        "elasticgpu": "tencent",
        "hami-dra": "hami",
        "mgpu": "volcengine",
        "qgpu": "tencent",
        "vcuda": "tencent",
    }
    folders = {path.parent.name for path in FOLDER.glob("*/*.yaml")}
    ours = {name for name, dialect in DIALECTS.items() if not dialect.other_cards}
    assert {of_no_folder.get(name, name) for name in ours} == folders
    cells = [results.by_convert(case) for case in CASES]
    for case in CASES:
        admitted = case.expected["admitted"]
        cells += [admitted] if isinstance(admitted, str) else admitted.values()
    assert {one.removeprefix("no: ") for one in cells} - {"yes", "unchanged"} == set(REASONS)


def conversions() -> Iterator[tuple[CorpusManifest, str, Converted]]:
    for case in CASES:
        for target in TARGETS:
            made = conversion(case, target)
            if not isinstance(made, str):
                yield case, target, made


def assert_same(first: ManifestFile, second: ManifestFile, but: list[str]) -> None:
    """Fail if containers of two files request different values, but for the keys `but`."""
    fields = comparison.dropped_fields(but)
    for before, after in zip(first.containers, second.containers, strict=True):
        one, other = (
            request_of(container, strict=False).requested for container in (before, after)
        )
        assert bool(one) == bool(other), first.path
        if one:
            meanings = comparison.meaning_of(one), comparison.meaning_of(other)
            assert set(comparison.differing_fields(*meanings)) <= fields, (first.path, before.name)


def test_what_is_converted_requests_the_same_and_passes_validate() -> None:
    """By reading it, in the target's own meaning; what was wrong before may be wrong still."""
    for case, target, made in conversions():
        after = read(case.path, made.text)
        assert_same(made.file, after, lost(made))
        wrong, before = (
            {one.key for one in check(file, strict=True).findings if one.level == ERROR}
            for file in (after, case.file)
        )
        assert wrong <= before, (case, target)


def test_what_is_converted_twice_is_as_after_the_first_time() -> None:
    for case, target, made in conversions():
        again = convert(read(case.path, made.text), TARGETS[target])
        assert (again.text, again.lost) == (made.text, ()), (case, target)


def test_there_and_back_requests_the_same() -> None:
    """To our keys, from there to the target's, and to ours again."""
    for case, target, _ in conversions():
        ours = conversion(case, "gpushare")
        assert not isinstance(ours, str), (case, target)
        if case.file.documents[0].kind not in OUTSIDE:
            before = read(case.path, ours.text)
            theirs = convert(before, TARGETS[target])
            back = convert(read(case.path, theirs.text), TARGETS["gpushare"])
            assert_same(before, read(case.path, back.text), lost(theirs))


def test_explain_fits_the_terminal_and_what_is_converted_is_applied_as_it_was_meant() -> None:
    for path in FOLDER.glob("*/*.yaml"):
        for line in explain.manifest_lines(manifest.explain_manifest(str(path), None)):
            assert len(line) <= WIDTH or " " not in line.strip(), path
    for case in CASES:
        path = case.golden("gpushare")
        if not path.exists():
            continue
        originals, ours = (
            manifest.explain_manifest(str(one), None)["containers"] for one in (case.path, path)
        )
        for meant, applied in zip(originals, ours, strict=True):
            values = {key: one["text"] for key, one in applied["applied"].items()}
            differing = {*values.items()} ^ {*meant["combined"].items()}
            assert differing <= {("count", "1")}, case
            assert not [row for row in applied["ignored"] if row["where"] == "limit"], case


def test_in_mode_dra_no_pod_has_a_share_by_its_keys() -> None:
    for case in IN_CLUSTER:
        for read_there in (pods(case), converted_pods(case) or []):
            for one in on_node(read_there, "dra"):
                assert isinstance(one, str) or one["kind"] == "none", case
