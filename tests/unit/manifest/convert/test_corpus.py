# SPDX-License-Identifier: Apache-2.0
"""Every manifest of the corpus: what it asks, what it is converted to, and back."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import yaml

from gpushare.manifest import ManifestFile, read
from gpushare.manifest.check import ERROR, check
from gpushare.manifest.convert import TARGETS, CannotConvert, Converted, convert, requests
from gpushare.manifest.model import OUTSIDE
from gpushare.manifest.request import request_of
from gpushare.quota.dialects import DIALECTS
from tests.corpus.cases import CASES, FOLDER, CorpusManifest, name_of

EACH = pytest.mark.parametrize("case", CASES, ids=str)


def asked(file: ManifestFile) -> dict[str, dict[str, str]]:
    """Return what each container that asks for something asks, in canonical text."""
    return {
        name_of(one): dict(sorted((key, asked.text) for key, asked in layer.items()))
        for one in file.containers
        if (layer := request_of(one, strict=False).requested)
    }


def test_every_vendor_has_a_manifest() -> None:
    folders = {path.name for path in FOLDER.iterdir() if path.is_dir() and path.name[0] != "_"}
    of_no_folder = {
        "egpu": "alibaba",
        "elasticgpu": "tencent",
        "hami-dra": "hami",
        "mgpu": "volcengine",
        "qgpu": "tencent",
        "vcuda": "tencent",
    }
    assert {of_no_folder.get(name, name) for name in DIALECTS} == folders
    assert {case.path.parent.name for case in CASES} == folders


@EACH
def test_the_corpus_states_each_request(case: CorpusManifest) -> None:
    assert asked(case.file) == {
        name: dict(sorted(keys.items())) for name, keys in case.expected["asks"].items()
    }


def refusal(case: CorpusManifest, target: str) -> str | None:
    return case.expected.get("refused", {}).get(target)  # type: ignore[no-any-return]


PAIRS = [(case, target) for case in CASES for target in TARGETS]
REFUSED = [pair for pair in PAIRS if refusal(*pair) is not None]
CONVERTED = [pair for pair in PAIRS if refusal(*pair) is None]


@functools.cache
def converted(case: CorpusManifest, target: str) -> Converted:
    return convert(case.file, TARGETS[target])


def lost_keys(made: Converted) -> list[str]:
    return sorted({one.why.partition(" ")[0] for one in made.lost})


def assert_same(first: ManifestFile, second: ManifestFile, lost: list[str]) -> None:
    """Hold each container of two files against the other, but for the keys that are `lost`."""
    fields = requests.dropped_fields(lost)
    for before, after in zip(first.containers, second.containers, strict=True):
        one, other = (
            request_of(container, strict=False).requested for container in (before, after)
        )
        assert bool(one) == bool(other)
        if one:
            differing = requests.differing_fields(
                requests.meaning_of(one), requests.meaning_of(other)
            )
            assert set(differing) <= fields, (before.name, differing)


@pytest.mark.parametrize(("case", "target"), REFUSED, ids=str)
def test_a_value_that_a_target_cannot_express_is_refused_with_its_line(
    case: CorpusManifest, target: str
) -> None:
    with pytest.raises(CannotConvert, match=refusal(case, target)) as raised:
        convert(case.file, TARGETS[target])
    assert f"{case.path}:" in str(raised.value)
    assert not case.golden(target).exists()


@pytest.mark.parametrize(("case", "target"), CONVERTED, ids=str)
def test_the_corpus_states_each_conversion(case: CorpusManifest, target: str) -> None:
    made = converted(case, target)
    golden = case.golden(target)
    assert made.changed == golden.exists()
    if made.changed:
        assert made.text == golden.read_text(encoding="utf-8")
    assert lost_keys(made) == sorted(case.expected.get("lost", {}).get(target, []))


@pytest.mark.parametrize(("case", "target"), CONVERTED, ids=str)
def test_the_converted_manifest_requests_the_same(case: CorpusManifest, target: str) -> None:
    """By reading it, in the target's own meaning; of the rest no container asks for more."""
    made = converted(case, target)
    assert_same(made.file, read(case.path, made.text), lost_keys(made))


@pytest.mark.parametrize(("case", "target"), CONVERTED, ids=str)
def test_the_converted_manifest_passes_validate(case: CorpusManifest, target: str) -> None:
    """But for what was wrong before, and for what only stands beside."""
    before, after = (
        {finding.key for finding in check(file, strict=True).findings if finding.level == ERROR}
        for file in (case.file, read(case.path, converted(case, target).text))
    )
    assert after <= before


@pytest.mark.parametrize(("case", "target"), CONVERTED, ids=str)
def test_converting_twice_changes_nothing(case: CorpusManifest, target: str) -> None:
    once = converted(case, target).text
    again = convert(read(case.path, once), TARGETS[target])
    assert again.text == once
    assert not again.lost


@pytest.mark.parametrize(("case", "target"), CONVERTED, ids=str)
def test_there_and_back_asks_the_same(case: CorpusManifest, target: str) -> None:
    """To our keys, from there to the target's, and to ours again."""
    if refusal(case, "gpushare") is not None:
        assert refusal(case, target) is not None
        return
    ours = converted(case, "gpushare")
    if case.file.documents[0].kind in OUTSIDE and target != "gpushare":
        with pytest.raises(CannotConvert, match="requests of Kubernetes pods"):
            convert(read(case.path, ours.text), TARGETS[target])
        return
    theirs = convert(read(case.path, ours.text), TARGETS[target])
    back = convert(read(case.path, theirs.text), TARGETS["gpushare"])
    assert_same(read(case.path, ours.text), read(case.path, back.text), lost_keys(theirs))


@pytest.mark.parametrize(("case", "target"), CONVERTED, ids=str)
def test_every_comment_is_kept(case: CorpusManifest, target: str) -> None:
    made = converted(case, target)
    told = [one.key for one in made.notes if one.what == "note"]
    for line in case.file.text.splitlines():
        _, mark, comment = line.partition(" #")
        if mark and not line.lstrip().startswith("-"):
            assert comment in made.text or f"#{comment}" in told


@pytest.mark.parametrize(("case", "target"), CONVERTED, ids=str)
def test_a_manifest_without_a_request_is_unchanged(case: CorpusManifest, target: str) -> None:
    """Of the data, but for what a request is made of."""
    made = converted(case, target)
    before, after = (
        [bare(document) for document in yaml.safe_load_all(text)]
        for text in (case.file.text, made.text)
    )
    assert before == after


REQUESTS = {
    "annotations",
    "env",
    "environment",
    "labels",
    "resourceRequirements",
    "resources",
    "runtime",
    "runtimeClassName",
    "schedulerName",
    "x-gpu",
}


def bare(data: Any) -> Any:
    """Return `data` without what requests are made of, and without what is empty then."""
    if isinstance(data, dict):
        kept = {key: bare(value) for key, value in data.items() if key not in REQUESTS}
        return {key: value for key, value in kept.items() if value not in ({}, None)}
    return [bare(item) for item in data] if isinstance(data, list) else data
