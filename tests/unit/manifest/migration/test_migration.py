# SPDX-License-Identifier: Apache-2.0
"""Plans for dumps of clusters with each system, in the shape of their public installations.

The expected documents are what `gpushare k8s migrate NAME.yaml --format markdown` prints in this
folder.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from gpushare import config
from gpushare.cli import gpushare
from gpushare.manifest import ManifestError, ManifestFile, read
from gpushare.manifest.migration import MigrationPlan, plans
from gpushare.manifest.migration.inventory import becomes
from gpushare.manifest.migration.report import as_data, as_markdown, as_text
from gpushare.manifest.migration.settings import FLAGS, HAMI_NODE, HAMI_NVIDIA, SettingRule
from gpushare.manifest.migration.systems import ROLES, SYSTEMS
from gpushare.quota.dialects import DIALECTS, TABLES
from gpushare.quota.dialects.vendor_key import LOCATIONS
from gpushare.yaml_nodes import YamlRules

if TYPE_CHECKING:
    from click.testing import Result

HERE = Path(__file__).parent
NAMES = ("hami", "gpu-manager", "qgpu", "cgpu")


def dump(name: str) -> ManifestFile:
    path = HERE / f"{name}.yaml"
    return read(path.name, path.read_text())


def plan_of(name: str, *changes: tuple[str, str]) -> MigrationPlan:
    text = (HERE / f"{name}.yaml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (found,) = plans([read("dump.yaml", text)])
    return found


def plan_for(text: str) -> MigrationPlan:
    (found,) = plans([read("dump.yaml", text)])
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_plan_for_a_dump(name: str) -> None:
    (found,) = plans([dump(name)])
    assert found.inventory.system.name == name
    assert as_markdown(found).rstrip("\n") == (HERE / f"{name}.md").read_text().rstrip("\n")


def test_the_plan_for_a_terminal() -> None:
    (found,) = plans([dump("hami")])
    assert as_text(found).rstrip("\n") == (HERE / "hami.txt").read_text().rstrip("\n")


@pytest.mark.parametrize("name", NAMES)
def test_no_key_of_the_system_is_unknown_to_the_tables(name: str) -> None:
    """Each name in the dump with a domain of the system is a row, and each row says what it is."""
    system, file = SYSTEMS[name], dump(name)
    domains = tuple(domain for one in system.dialects for domain in DIALECTS[one].domains)
    texts: set[str] = set()
    for document in file.documents:
        texts |= {*document.annotations, *document.labels}
        for container in document.containers:
            texts |= {*container.annotations, *container.labels, *container.limits}
    mine = {text for text in texts if text.startswith(domains)} - {system.ignore_webhook[:15]}
    assert mine
    for text in mine:
        assert any(TABLES.find(where, {text: "1"}) for where in LOCATIONS), text


@pytest.mark.parametrize("name", NAMES)
def test_the_keys_of_the_expected_document_are_those_of_the_tables(name: str) -> None:
    section = (HERE / f"{name}.md").read_text().partition("## Keys\n\n")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines()[2:]]
    assert rows
    for key, where, meaning in rows:
        found = TABLES.find(where, {key: "1"})  # type: ignore[arg-type]
        mine = [word for word in found if word.dialect.name in {*SYSTEMS[name].dialects, "nvidia"}]
        assert mine, f"{key} is in no table of {name}"
        assert meaning in {becomes(word) for word in mine}


@pytest.mark.parametrize("name", NAMES)
def test_every_key_in_a_plan_becomes_something(name: str) -> None:
    (found,) = plans([dump(name)])
    assert found.inventory.workloads
    for one in found.inventory.workloads:
        assert one.keys
        for key in one.keys:
            assert key.becomes not in {"", "nothing"}
            row = TABLES.find(key.where, {key.key: key.value})[0].row  # type: ignore[arg-type]
            assert not row.key or row.key in key.becomes


@pytest.mark.parametrize("name", NAMES)
def test_what_was_converted_is_a_configuration_that_a_node_accepts(name: str) -> None:
    (found,) = plans([dump(name)])
    text = yaml.safe_dump(found.values.get("configuration", {}))
    config.parse(text, Path("gpushare.yaml"))  # raises if a key or a value is wrong


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_the_steps(name: str) -> None:
    (found,) = plans([dump(name)])
    titles = [step.title for step in found.steps]
    assert titles[0] == "Save what is there"
    assert titles[-1] == "Clean up"
    installed = titles.index("Install gpushare on that node")
    moved = next(i for i, title in enumerate(titles) if title.startswith("Move "))
    removed = [i for i, title in enumerate(titles) if title.startswith("Remove ")]
    assert removed
    assert installed < moved < min(removed)
    roles = [one for title in titles for one in ROLES if title.startswith(f"Remove the {one} of")]
    assert roles == sorted(roles, key=ROLES.index)
    for step in found.steps[1:-1]:
        assert step.back or not step.commands, f"{step.title} has no way back"


def test_the_webhook_is_removed_before_what_it_hands_pods_to() -> None:
    (found,) = plans([dump("hami")])
    commands = [line for step in found.steps for line in step.commands]
    webhook = commands.index("kubectl delete mutatingwebhookconfiguration hami-webhook")
    assert webhook < commands.index("helm uninstall hami --namespace kube-system")


def test_a_namespace_is_never_rewritten_by_webhook_and_policy() -> None:
    (found,) = plans([dump("hami")])
    move = next(step for step in found.steps if step.title == "Move a namespace")
    ignore = "kubectl label namespace NAMESPACE hami.io/webhook=ignore"
    translate = "kubectl label namespace NAMESPACE gpushare.io/translate-"
    assert move.commands.index(ignore) < move.commands.index(translate)
    back = "kubectl label namespace NAMESPACE gpushare.io/translate=false"
    assert move.back.index(back) < move.back.index(
        "kubectl label namespace NAMESPACE hami.io/webhook-"
    )
    titles = [step.title for step in found.steps]
    excluded = titles.index("Exclude all namespaces from gpushare's admission policy")
    assert excluded < titles.index("Install gpushare on that node")


@pytest.mark.parametrize("name", NAMES)
def test_the_commands_are_a_shells(name: str, tmp_path: Path) -> None:
    (found,) = plans([dump(name)])
    lines = [line for step in found.steps for line in step.commands]
    script = tmp_path / "steps.sh"
    script.write_text("\n".join(lines))
    subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.parametrize(
    ("version", "translates", "mode"),
    [
        ("v1.36.2", "auto", "plugin"),
        ("v1.37.0", "auto", "plugin"),
        ("v1.35.1", "v1beta1", "plugin"),
        ("v1.34.0+k3s1", "v1beta1", "plugin"),
        ("v1.33.9", "none", "annotations"),
    ],
)
def test_what_translates_pods_depends_on_the_oldest_kubelet(
    version: str, translates: str, mode: str
) -> None:
    text = (HERE / "hami.yaml").read_text()
    first, found, rest = text.partition("v1.36.2\n- apiVersion: v1\n  kind: Node")
    assert found
    changed = plan_for(
        first + found.replace("v1.36.2", version) + rest.replace("v1.36.2", "v1.37.1")
    )
    assert (changed.values["admission"]["translate"], changed.mode) == (translates, mode)
    move = next(step for step in changed.steps if step.title.startswith("Move a"))
    assert ("gpushare convert FILE --to gpushare --in-place" in move.commands) == (
        translates == "none"
    )


def test_the_mode_can_be_chosen() -> None:
    (chosen,) = plans([dump("hami")], "annotations")
    assert chosen.values["mode"] == "annotations"
    assert chosen.values["admission"]["nvidia"] is True  # team-b/notebook has nvidia.com/gpu alone
    notes = " ".join(note for step in chosen.steps for note in step.notes)
    assert "mode plugin" not in notes


def test_what_a_workload_needs_is_said_for_it() -> None:
    (found,) = plans([dump("hami")])
    notes = next(step for step in found.steps if step.title == "Move a namespace").notes
    assert any("Deployment ai/embed: gpushare refuses it" in note for note in notes)
    assert any("Deployment ai/embed: names schedulerName: hami-scheduler" in note for note in notes)
    assert any("Job ai/train: remove nodeSelector gpu=on" in note for note in notes)
    assert any("Job ai/train: it requests memory in percent" in note for note in notes), (
        "the device plugin counts no percentages"
    )
    assert not any("ai/llm: " in note for note in notes), "it moves as it is"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("containers:", "runtimeClassName: kata, containers:"), "it has the RuntimeClass kata"),
        (("containers:", "runtimeClassName: nvidia, containers:"), ""),
        (("namespace: n", "namespace: kube-system"), "its namespace is kube-system"),
        (("name: c", f"name: {'c' * 47}"), f"the name of its container {'c' * 47} has over 46"),
        (("name: c", f"name: {'c' * 46}"), ""),
        (("-core: '10'", "-core: '100'"), "it requests whole cards"),
        (("-core: '10'", "-core: '200'"), "it requests whole cards"),
    ],
)
def test_a_pod_that_the_policy_leaves_as_it_is_is_said(change: tuple[str, str], why: str) -> None:
    text = (
        "{kind: Pod, metadata: {name: p, namespace: n}, spec: {containers: [{name: c, image: i, "
        "resources: {limits: {tencent.com/vcuda-core: '10', tencent.com/vcuda-memory: '4'}}}]}}"
    )
    assert change[0] in text
    found = plan_for(text.replace(*change))
    (one,) = found.inventory.workloads
    assert one.stays("plugin").startswith(why)
    assert bool(one.stays("plugin")) == bool(why)
    notes = [note for step in found.steps for note in step.notes if "the policy leaves it" in note]
    assert len(notes) == bool(why)
    is_of_plugin = "whole cards" in why
    assert not why or notes[0].endswith("mode annotations.") == is_of_plugin


def test_pods_are_counted_for_their_owner_and_ended_ones_not_at_all() -> None:
    (found,) = plans([dump("hami")])
    pods = {one.owner: one.pods for one in found.inventory.workloads}
    assert pods == {
        "Deployment ai/embed": 0,
        "Deployment ai/llm": 2,
        "Job ai/train": 1,
        "Pod team-b/notebook": 1,
    }


def test_objects_without_helm_are_removed_one_by_one() -> None:
    plain = plan_of(
        "hami",
        ("      meta.helm.sh/release-name: hami\n", ""),
        ("      meta.helm.sh/release-namespace: kube-system\n", ""),
    )
    removed = [step.title for step in plain.steps if step.title.startswith("Remove")]
    assert removed == [
        "Remove the webhook of HAMi",
        "Remove the scheduler of HAMi",
        "Remove the device plugin of HAMi",
        "Remove its settings",
    ]


def test_several_systems_have_a_plan_each() -> None:
    found = plans([dump("hami"), dump("qgpu")])
    assert [one.inventory.system.name for one in found] == ["hami", "qgpu"]


def test_pods_alone_are_enough_and_the_plan_says_what_is_missing() -> None:
    found = plan_for(
        "{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: n}, spec: {containers: "
        '[{name: c, image: i, resources: {limits: {tencent.com/vcuda-core: "10", '
        'tencent.com/vcuda-memory: "4"}}}]}}'
    )
    assert found.inventory.system.name == "gpu-manager"
    assert "Make it again with them" in found.steps[0].notes[0]


@pytest.mark.parametrize(
    "text",
    [
        "{kind: DaemonSet, metadata: {name: gpushare-node, namespace: gpushare-system}}",
        "{kind: DaemonSet, metadata: {name: nvidia-device-plugin-daemonset, namespace: n}}",
        (
            "{kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: i, "
            'resources: {limits: {nvidia.com/gpu: "1"}}}]}}'
        ),
        "{kind: ConfigMap, metadata: {name: config}, data: {config.json: '{}'}}",
    ],
)
def test_other_things_are_no_such_system(text: str) -> None:
    found = plans([read("dump.yaml", text)])
    assert [one.inventory.system.name for one in found] in ([], ["hami"])
    assert all(one.inventory.workloads for one in found)


RULES: list[tuple[str, SettingRule, str, dict[str, Any] | None]] = [
    ("nvidia.deviceMemoryScaling", HAMI_NVIDIA["deviceMemoryScaling"], "1", None),
    ("nvidia.deviceMemoryScaling", HAMI_NVIDIA["deviceMemoryScaling"], "1.8", {}),
    ("nvidia.deviceMemoryScaling", HAMI_NVIDIA["deviceMemoryScaling"], "0.5", {}),
    ("nvidia.deviceMemoryScaling", HAMI_NVIDIA["deviceMemoryScaling"], "x", {}),
    ("nvidia.deviceCoreScaling", HAMI_NVIDIA["deviceCoreScaling"], "2", {}),
    ("nvidia.deviceSplitCount", HAMI_NVIDIA["deviceSplitCount"], "10", {"max_tenants": 10}),
    ("nvidia.deviceSplitCount", HAMI_NVIDIA["deviceSplitCount"], "999", {"max_tenants": 256}),
    ("nvidia.deviceSplitCount", HAMI_NVIDIA["deviceSplitCount"], "many", {}),
    ("nvidia.defaultMemory", HAMI_NVIDIA["defaultMemory"], "0", None),
    (
        "nvidia.defaultMemory",
        HAMI_NVIDIA["defaultMemory"],
        "3000",
        {"defaults.memory": "3000MiB", "defaults.mode": "shared"},
    ),
    ("nvidia.defaultCores", HAMI_NVIDIA["defaultCores"], "0", None),
    ("nvidia.defaultCores", HAMI_NVIDIA["defaultCores"], "25", {"defaults.cores": 25}),
    ("nvidia.memoryFactor", HAMI_NVIDIA["memoryFactor"], "1", None),
    ("nvidia.memoryFactor", HAMI_NVIDIA["memoryFactor"], "10", {}),
    (
        "nvidia.gpuCorePolicy",
        HAMI_NVIDIA["gpuCorePolicy"],
        "default",
        {"defaults.policy": "burst-share"},
    ),
    (
        "nvidia.gpuCorePolicy",
        HAMI_NVIDIA["gpuCorePolicy"],
        "disable",
        {"defaults.policy": "best-effort"},
    ),
    ("nvidia.resourceMemoryName", HAMI_NVIDIA["resourceMemoryName"], "nvidia.com/gpumem", None),
    ("nvidia.resourceMemoryName", HAMI_NVIDIA["resourceMemoryName"], "example.com/vram", {}),
    ("nodeconfig.operatingmode", HAMI_NODE["operatingmode"], "hami-core", None),
    ("nodeconfig.operatingmode", HAMI_NODE["operatingmode"], "mig", {}),
    (
        "--disable-core-limit",
        FLAGS["hami"]["disable-core-limit"],
        "true",
        {"defaults.policy": "best-effort"},
    ),
    ("--disable-core-limit", FLAGS["hami"]["disable-core-limit"], "false", None),
    (
        "--gpu-scheduler-policy",
        FLAGS["hami"]["gpu-scheduler-policy"],
        "topology-aware",
        {"defaults.placement": "topology"},
    ),
    ("--gpu-scheduler-policy", FLAGS["hami"]["gpu-scheduler-policy"], "mutex", {}),
    (
        "--sample-period",
        FLAGS["gpu-manager"]["sample-period"],
        "2",
        {"timing.sample_interval_seconds": 2.0},
    ),
    ("--sample-period", FLAGS["gpu-manager"]["sample-period"], "0", {}),
    ("--share-mode", FLAGS["gpu-manager"]["share-mode"], "true", {}),
    ("--memory-unit", FLAGS["cgpu"]["memory-unit"], "GiB", None),
    ("--memory-unit", FLAGS["cgpu"]["memory-unit"], "MiB", {}),
]


@pytest.mark.parametrize(
    ("key", "rule", "text", "expected"), RULES, ids=[f"{one[0]}={one[2]}" for one in RULES]
)
def test_a_setting_is_converted_or_has_the_reason_why_not(
    key: str, rule: SettingRule, text: str, expected: dict[str, Any] | None
) -> None:
    read_as = rule.read(text)
    if expected is None:
        assert read_as is None, f"{key}: it is the default"
        return
    assert read_as is not None
    values, why = read_as
    assert values == expected
    assert values or why


def test_the_settings_of_one_node_are_those_of_its_cards() -> None:
    (found,) = plans([dump("hami")])
    cards = found.values["configuration"]["cards"]
    assert cards == {"GPU-5c1a9f2e-0000-0000-0000-000000000003": {"max_tenants": 4}}
    nodes = {one.node for one in found.settings}
    assert nodes == {"", "gpu-2"}, "the example of HAMi's chart is for a node that there is not"


def test_a_label_that_all_nodes_have_alike_is_a_default() -> None:
    alike = plan_of("qgpu", ("policy: fixed-share", "policy: bs"))
    assert alike.values["configuration"] == {"defaults": {"policy": "burst-share"}}
    (found,) = plans([dump("qgpu")])
    assert "configuration" not in found.values
    assert all("the label stays in force" in one.why for one in found.settings)


@pytest.mark.parametrize("name", NAMES)
def test_labels_that_gpushare_applies_stay_in_force(name: str) -> None:
    (found,) = plans([dump(name)])
    for one in found.labels:
        text = {one.key: next(iter(one.values))}
        (word,) = TABLES.find("node label", text) or TABLES.find("node annotation", text)
        assert one.then.startswith("stays in force") == bool(word.row.setting)
    removed = [one.key for one in found.labels if one.then.startswith("remove it")]
    assert removed == (["nvidia-device-enable"] if name == "gpu-manager" else [])


def test_the_data_are_json() -> None:
    (found,) = plans([dump("cgpu")])
    data = json.loads(json.dumps(as_data(found)))
    assert data["system"] == "cgpu"
    assert [one["name"] for one in data["objects"]] == [
        "gpushare-device-plugin-ds",
        "cgpu-installer",
    ]
    assert {one["owner"]: one["request"] for one in data["workloads"]} == {
        "Job default/bert": {"cores": "30", "memory": "6GiB"},
        "StatefulSet default/binpack": {"memory": "4GiB", "count": "2"},
    }
    assert all({"title", "why", "commands", "notes", "back"} == set(one) for one in data["steps"])


def test_a_dump_may_be_larger_than_a_manifest_but_not_without_limit(tmp_path: Path) -> None:
    file = tmp_path / "dump.yaml"
    shutil.copy(HERE / "hami.yaml", file)
    with pytest.raises(ManifestError, match="larger than 1 KiB"):
        read(file, rules=YamlRules(max_bytes=1 << 10))
    with pytest.raises(ManifestError, match="over 100 values"):
        read(file, rules=YamlRules(max_values=100))
    assert read(file, rules=YamlRules(max_bytes=32 << 20)).documents


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


def test_the_command_reads_stdin_and_prints_json(run: Any) -> None:
    text = (HERE / "qgpu.yaml").read_text()
    for words in (("-", "--format", "json"), ("-", "--json")):
        (data,) = json.loads(run(*words, input=text).stdout)
        assert data["system"] == "qgpu"
        assert data["objects"][0]["at"].startswith("-:")


def test_a_dump_that_is_no_yaml_is_refused_with_its_position(run: Any) -> None:
    refused = run("-", input="items:\n- kind: Pod\n  metadata: [\n")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("gpushare: -:4:1: not YAML:")


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


def kubectl(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "kubectl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_without_a_file_kubectl_is_run(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl(tmp_path, f'echo "$@" > {tmp_path}/words; cat {HERE}/cgpu.yaml', monkeypatch)
    printed = run()
    assert printed.exit_code == 0
    assert "cluster:" in printed.stdout
    words = (tmp_path / "words").read_text().split()
    assert words[0] == "get"
    assert "--all-namespaces" in words
    assert {"daemonsets", "pods", "nodes"} <= set(words[1].split(","))


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (
            "echo 'The connection to the server was refused' >&2; exit 1",
            "gpushare: kubectl: The connection to the server was refused; make the dump where",
        ),
        (None, "gpushare: there is no kubectl: make the dump where kubectl works"),
    ],
)
def test_a_cluster_that_cannot_be_read_is_an_error(
    run: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str | None,
    expected: str,
) -> None:
    if script is None:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        kubectl(tmp_path, script, monkeypatch)
    refused = run()
    assert refused.exit_code == 1
    assert refused.stderr.startswith(expected)
