# SPDX-License-Identifier: Apache-2.0
"""The manifests for clusters without helm: those of the chart, as `kubectl apply -k` reads them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from packages import manifests
from packages.workspace import Workspace

import gpushare
from tests.stack.program import find
from tools.check.command import ROOT

from .test_chart import rendered

pytestmark = pytest.mark.needs("helm", "kubectl")

FOLDER = ROOT / manifests.FOLDER
NAMESPACE = ("Namespace", manifests.NAMESPACE)


def kustomized(folder: Path) -> dict[tuple[str, str], Any]:
    """Return the objects that `kubectl apply -k` applies, by kind and name."""
    words = (find("kubectl"), "kustomize", str(folder))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return by_name(yaml.safe_load_all(done.stdout))


def by_name(objects: Any) -> dict[tuple[str, str], Any]:
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


def test_the_files_are_those_that_the_chart_renders(tmp_path: Path) -> None:
    expected = manifests.manifests(Workspace.of(ROOT, tmp_path), Path(find("helm")))
    found = {str(path.relative_to(FOLDER)): path.read_text() for path in FOLDER.rglob("*.yaml")}
    assert found == expected, "cd packaging && ../.venv/bin/python -m packages.manifests"


@pytest.mark.parametrize("name", manifests.VALUES)
def test_each_folder_has_every_object_of_the_chart_and_the_namespace(name: str) -> None:
    objects = kustomized(FOLDER / name)
    assert objects.pop(NAMESPACE)
    own = {key: value for key, value in manifests.VALUES[name].items() if "." not in key}
    values = {**own, "admission": {"translate": "none"}}
    chart = by_name(rendered(values, manifests.KUBERNETES))
    assert chart
    source_has_no_version = re.compile(r"\b0\.0\.0\b")
    expected = source_has_no_version.sub(gpushare.__version__, yaml.safe_dump(chart))
    assert yaml.safe_dump(objects) == expected
