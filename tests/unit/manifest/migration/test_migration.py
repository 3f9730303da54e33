# SPDX-License-Identifier: Apache-2.0
"""Plans for dumps of clusters with each system, in the shape of their public installations.

The expected documents are what `gpushare k8s migrate NAME.yaml --format markdown` prints in this
folder.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from gpushare import config
from gpushare.cli import gpushare
from gpushare.manifest import ManifestFile, read
from gpushare.manifest.migration import plans
from gpushare.manifest.migration.report import as_text
from gpushare.manifest.migration.settings import FLAGS, HAMI_NODE, HAMI_NVIDIA, SettingRule

if TYPE_CHECKING:
    from click.testing import Result

HERE = Path(__file__).parent
NAMES = ("hami", "gpu-manager", "qgpu", "cgpu")


def dump(name: str) -> ManifestFile:
    path = HERE / f"{name}.yaml"
    return read(path.name, path.read_text())


def test_the_plan_for_a_terminal() -> None:
    (found,) = plans([dump("hami")])
    assert as_text(found).rstrip("\n") == (HERE / "hami.txt").read_text().rstrip("\n")


@pytest.mark.parametrize("name", NAMES)
def test_what_was_converted_is_a_configuration_that_a_node_accepts(name: str) -> None:
    (found,) = plans([dump(name)])
    text = yaml.safe_dump(found.values.get("configuration", {}))
    config.parse(text, Path("gpushare.yaml"))  # raises if a key or a value is wrong


@pytest.mark.parametrize("name", NAMES)
def test_the_commands_are_lines_of_a_shell_and_have_a_way_back(name: str) -> None:
    (found,) = plans([dump(name)])
    assert all(shlex.split(line) for step in found.steps for line in (*step.commands, *step.back))
    for step in found.steps[1:-1]:
        assert step.back or not step.commands, f"{step.title} has no way back"


#: What a value of a setting becomes: None where it is the default, {} where only a reason is said.
RULES: list[tuple[Mapping[str, SettingRule], str, dict[str, dict[str, Any] | None]]] = [
    (HAMI_NVIDIA, "deviceMemoryScaling", {"1": None, "1.8": {}, "0.5": {}, "x": {}}),
    (HAMI_NVIDIA, "deviceCoreScaling", {"2": {}}),
    (HAMI_NVIDIA, "deviceSplitCount", {"10": {"max_tenants": 10}, "many": {}}),
    (HAMI_NVIDIA, "deviceSplitCount", {"999": {"max_tenants": 256}}),
    (HAMI_NVIDIA, "defaultMemory", {"0": None}),
    (
        HAMI_NVIDIA,
        "defaultMemory",
        {"3000": {"defaults.memory": "3000MiB", "defaults.mode": "shared"}},
    ),
    (HAMI_NVIDIA, "defaultCores", {"0": None, "25": {"defaults.cores": 25}}),
    (HAMI_NVIDIA, "memoryFactor", {"1": None, "10": {}}),
    (HAMI_NVIDIA, "gpuCorePolicy", {"default": {"defaults.policy": "burst-share"}}),
    (HAMI_NVIDIA, "gpuCorePolicy", {"disable": {"defaults.policy": "best-effort"}}),
    (HAMI_NVIDIA, "resourceMemoryName", {"nvidia.com/gpumem": None, "example.com/vram": {}}),
    (HAMI_NODE, "operatingmode", {"hami-core": None, "mig": {}}),
    (FLAGS["hami"], "disable-core-limit", {"true": {"defaults.policy": "best-effort"}}),
    (FLAGS["hami"], "disable-core-limit", {"false": None}),
    (FLAGS["hami"], "gpu-scheduler-policy", {"topology-aware": {"defaults.placement": "topology"}}),
    (FLAGS["hami"], "gpu-scheduler-policy", {"mutex": {}}),
    (FLAGS["gpu-manager"], "sample-period", {"2": {"timing.sample_interval_seconds": 2.0}}),
    (FLAGS["gpu-manager"], "sample-period", {"0": {}}),
    (FLAGS["gpu-manager"], "share-mode", {"true": {}}),
    (FLAGS["cgpu"], "memory-unit", {"GiB": None, "MiB": {}}),
]


def test_a_setting_is_converted_or_has_the_reason_why_not() -> None:
    for rules, key, texts in RULES:
        for text, expected in texts.items():
            values, why = rules[key].read(text) or (None, "it is the default")
            assert values == expected, (key, text)
            assert values or why, (key, text)


# --- the command ---


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    from click.testing import CliRunner  # noqa: PLC0415

    monkeypatch.chdir(HERE)

    def call(*words: str, **settings: Any) -> Result:
        return CliRunner().invoke(gpushare, ["k8s", "migrate", *words], **settings)

    return call


@pytest.mark.parametrize("name", NAMES)
def test_the_command_prints_the_document(run: Any, name: str) -> None:
    printed = run(f"{name}.yaml", "--format", "markdown")
    assert (printed.exit_code, printed.stderr) == (0, "")
    assert printed.stdout == (HERE / f"{name}.md").read_text()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: hami-scheduler\n    namespace", 'name: "hami-scheduler; id"\n    namespace'),
        ('gpu: "on"\n        priority', 'gpu: "$(id)"\n        priority'),
        ("release-name: hami\n", 'release-name: "hami\\nid"\n'),
    ],
)
def test_a_name_that_a_shell_would_expand_is_refused(run: Any, old: str, new: str) -> None:
    text = (HERE / "hami.yaml").read_text()
    assert old in text
    refused = run("-", input=text.replace(old, new, 1))
    assert refused.exit_code == 1
    assert refused.stderr.startswith("gpushare: -:")
    assert "not a name of Kubernetes. Make the dump again" in refused.stderr


def test_what_a_terminal_would_obey_is_not_printed(run: Any) -> None:
    text = (HERE / "qgpu.yaml").read_text().replace("name: chat-0", 'name: "chat\\e[2J-0"')
    text = text.replace("kind: StatefulSet, name: chat", 'kind: StatefulSet, name: "chat\\e[2J"')
    printed = run("-", input=text)
    assert printed.exit_code == 0
    assert "chat?[2J" in printed.stdout
    assert "\x1b" not in printed.stdout


def test_a_cluster_without_such_a_system_is_an_error(run: Any) -> None:
    refused = run("-", input="{kind: Pod, metadata: {name: p}}")
    assert refused.exit_code == 1
    assert refused.stderr == (
        "gpushare: no HAMi, gpu-manager, qGPU or cGPU was found: dump also its DaemonSets and "
        "Deployments, pods and nodes, of all namespaces (-A)\n"
    )
