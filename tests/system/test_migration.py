# SPDX-License-Identifier: Apache-2.0
"""`gpushare k8s migrate`, which runs kubectl, and helm, which takes the values of its plans."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from gpushare.cli import gpushare
from gpushare.manifest import read
from gpushare.manifest.migration import MigrationPlan, plans
from tests.stack.program import find

from .own_machine import ROOT

DUMPS = ROOT / "tests/unit/manifest/migration"
NAMES = ("hami", "gpu-manager", "qgpu", "cgpu")
#: A kubelet's version for each value of admission.translate.
KUBERNETES = {"auto": "1.36", "v1beta1": "1.34", "none": "1.30"}


def run() -> Result:
    return CliRunner().invoke(gpushare, ["k8s", "migrate"])


@pytest.mark.needs("helm")
@pytest.mark.parametrize("name", NAMES)
def test_helm_takes_the_values(name: str, tmp_path: Path) -> None:
    (plan,) = plans([read(DUMPS / f"{name}.yaml")])
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(dict(plan.values)))
    rendered = template(plan, file)
    kinds = [one["kind"] for one in rendered if one]
    assert "DaemonSet" in kinds
    assert ("MutatingAdmissionPolicy" in kinds) == (plan.translates != "none")
    written = next(one for one in rendered if one and one["kind"] == "ConfigMap")
    configuration = yaml.safe_load(written["data"]["gpushare.yaml"])
    for key, value in plan.values.get("configuration", {}).items():
        assert configuration[key] == value


def template(plan: MigrationPlan, values: Path) -> list[dict[str, Any]]:
    version = KUBERNETES[plan.translates]
    words = [
        find("helm"),
        "template",
        "gpushare",
        str(ROOT / "packaging/helm/gpushare"),
        f"--kube-version={version}",
    ]
    done = subprocess.run(
        [*words, "--namespace=gpushare-system", f"--values={values}"],
        check=True,
        capture_output=True,
        text=True,
    )
    return list(yaml.safe_load_all(done.stdout))


def kubectl(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "kubectl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_without_a_file_kubectl_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubectl(tmp_path, f'echo "$@" > {tmp_path}/words; cat {DUMPS}/cgpu.yaml', monkeypatch)
    printed = run()
    assert printed.exit_code == 0
    assert "cluster:" in printed.stdout
    words = (tmp_path / "words").read_text().split()
    assert words[0] == "get"
    assert "--all-namespaces" in words
    assert {"daemonsets", "pods", "nodes"} <= set(words[1].split(","))
