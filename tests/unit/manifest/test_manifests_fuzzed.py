# SPDX-License-Identifier: Apache-2.0
"""Whatever is done to a manifest: problems are reported, and nothing is raised."""

from __future__ import annotations

import json
import random
from typing import Any, Final

import pytest
import yaml

from gpushare.manifest import read
from gpushare.manifest.check import check
from gpushare.manifest.model import ManifestError
from gpushare.text_position import at
from tests import recorded
from tests.corpus.cases import FOLDER
from tests.unit.manifest.test_check import RECORDED

CORPUS: Final = ("alibaba/cgpu-compose", "aws/mps-task", "hami/several", "nvidia/time-slicing")
TEXTS: Final = (
    *{case.title: case.text for case in recorded.cases(RECORDED)}.values(),
    *((FOLDER / f"{name}.yaml").read_text() for name in CORPUS),
    json.dumps(yaml.safe_load((FOLDER / "aws/mps-task.yaml").read_text()), indent="\t"),
    json.dumps(
        {"ociVersion": "1", "process": {"env": ["GPUSHARE_MEMORY=4GiB"]}, "annotations": {}}
    ),
    "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n",
)


ROUNDS: Final = 60


def reshaped(value: Any, chance: random.Random) -> Any:
    """Return `value` with a part of it in another's place, or of another type."""
    if chance.random() < 0.05:
        return chance.choice((None, True, 1, 0.5, "", "text", [], {}, [1], {"a": None}, [[]], [{}]))
    if isinstance(value, dict):
        return {key: reshaped(one, chance) for key, one in value.items()}
    if isinstance(value, list):
        return [reshaped(one, chance) for one in value]
    return value


def look(text: str) -> None:
    """Check `text` both ways; what is found is where the text has something."""
    try:
        file = read("f", text)
    except ManifestError:
        return
    lines = text.count("\n") + 1
    for strict in (True, False):
        for finding in check(file, strict=strict).findings:
            assert 1 <= finding.line <= lines, finding
            assert "\n" not in str(finding), finding
            assert at("f", finding.line, finding.column).count(":") == 2


@pytest.mark.parametrize("text", TEXTS)
def test_a_manifest_of_another_shape_gets_a_diagnostic(text: str) -> None:
    chance = random.Random(21)
    document = next(yaml.safe_load_all(text.replace("\t", " ")))
    for _ in range(ROUNDS):
        look(json.dumps(reshaped(document, chance), indent=1))
