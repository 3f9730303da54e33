# SPDX-License-Identifier: Apache-2.0
"""`gpushare explain FILE`: what a manifest's keys mean, which apply, and the effective request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gpushare.cli.text import WIDTH

from .conftest import CARD, STATUS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

    from .conftest import Cli
    from .fake_daemon import AnsweringDaemon

    Explain = Callable[..., Result]

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: train
  namespace: team
  annotations:
    gpushare.io/container.train.memory: 4GiB
spec:
  runtimeClassName: gpushare
  containers:
    - name: train
      image: x
      env:
        - {name: GPUSHARE_MEMORY, value: 8GiB}
        - {name: CUDA_DEVICE_MEMORY_LIMIT, value: 2g}
    - name: side
      image: y
      resources: {limits: {nvidia.com/gpumem: 4096, nvidia.com/gpucores: 30}}
"""
COMPOSE = """\
services:
  train:
    image: x
    environment:
      GPUSHARE_MEMORY: 4GiB
      GPUSHARE_CORES: "30"
"""
NEEDS_AMPERE = """\
services:
  train:
    image: x
    command: vllm serve --dtype=bfloat16
    environment:
      GPUSHARE_MEMORY: 4GiB
"""


@pytest.fixture
def explain(cli: Cli, tmp_path: Path) -> Explain:
    """Explain a text as a file, for a node that says nothing, or `config`."""

    def run(text: str, *options: str, config: str = "", name: str = "manifest.yaml") -> Result:
        (tmp_path / name).write_text(text)
        (tmp_path / "gpushare.yaml").write_text(config)
        file = str(tmp_path / "gpushare.yaml")
        return cli("explain", str(tmp_path / name), "--config", file, *options)

    return run


def containers(result: Result) -> dict[str, dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return {one["name"]: one for one in json.loads(result.stdout)["containers"]}


def test_keys_are_shown_with_meaning_and_translator_and_the_source_that_applies(
    explain: Explain,
) -> None:
    found = containers(explain(POD, "--json"))
    train, side = found["train"], found["side"]
    written = {(row["line"], row["key"]): row for row in train["keys"]}
    scoped = written[7, "gpushare.io/container.train.memory"]
    assert (scoped["vendor"], scoped["means"]) == ("gpushare", "memory=4GiB")
    hami = written[15, "CUDA_DEVICE_MEMORY_LIMIT"]
    assert (hami["where"], hami["value"], hami["vendor"]) == ("env", "2g", "HAMi")
    assert train["applied"]["memory"] == {
        "text": "2GiB",
        "written": "2g",
        "source": "env CUDA_DEVICE_MEMORY_LIMIT",
    }
    assert any("GPUSHARE_MEMORY" in note and "was not applied" in note for note in train["notes"])
    assert {row["key"] for row in side["ignored"]} == {"nvidia.com/gpumem", "nvidia.com/gpucores"}
    assert all("device plugin" in row["translated_by"] for row in side["ignored"])
    assert side["combined"] == {"memory": "4GiB", "cores": "30"}
    assert (side["applied"], side["effective"]["kind"]) == ({}, "none")


def test_as_text_it_has_all_of_that_in_lines_that_fit(explain: Explain) -> None:
    text = explain(POD).stdout
    for part in (
        "Pod team/train, container train (line 11)",
        "  Request",
        "  Ignored by the container runtime",
        "  Combined request",
        "    memory=4GiB cores=30",
        '    memory=2GiB from env CUDA_DEVICE_MEMORY_LIMIT "2g"',
        "    2GiB of 1 card, best-effort, offline 5",
    ):
        assert part in text, part
    assert "--to gpushare`." in " ".join(text.split())
    # The file's own name is as long as it is.
    assert max(len(line) for line in text.splitlines() if "/" not in line) <= WIDTH


def test_a_path_where_no_file_is_says_so(cli: Cli, tmp_path: Path) -> None:
    none = cli("explain", str(tmp_path / "none.yaml"))
    assert none.exit_code == 1
    assert "No such file or directory. Use a file" in none.stderr
    folder = cli("explain", str(tmp_path))
    assert "not a file. To check all files in a folder, run `gpushare validate" in folder.stderr


def test_a_nodes_defaults_and_ceilings_are_in_the_effective_request(explain: Explain) -> None:
    config = "defaults: {policy: burst-share}\nmax_per_request: {cores: 40}\n"
    train = containers(explain(COMPOSE, "--json", config=config))["train"]
    assert train["applied"]["policy"]["source"] == "default defaults.policy"
    assert train["effective"] == {
        "kind": "shared",
        "why": "memory is requested per card",
        "count": 1,
        "memory": "4GiB",
        "cores": 30,
        "policy": "burst-share",
        "class": "offline",
        "priority": 5,
    }
    config = "max_per_request: {cores: 20}\n"
    train = containers(explain(COMPOSE, "--json", config=config))["train"]
    assert train["effective"] is None
    assert "exceeds the maximum, 20" in train["refused"]
    assert "Refused" in explain(COMPOSE, config=config).stdout


def test_vendors_annotations_of_a_pod_take_an_engine_that_hands_them_on(
    explain: Explain,
) -> None:
    pod = POD.replace("gpushare.io/container.train.memory: 4GiB", 'gpu-memory: "4096"')
    notes = containers(explain(pod, "--json"))["train"]["notes"]
    assert any("`gpushare runtime configure` adds gpu-memory." in note for note in notes)


def test_a_wrong_value_is_shown_with_the_refusal(explain: Explain) -> None:
    wrong = COMPOSE.replace("4GiB", "4G")
    train = containers(explain(wrong, "--json"))["train"]
    assert ": ambiguous: " in train["refused"]
    assert train["problems"] == [train["refused"]]
    assert (train["effective"], train["applied"]) == (None, {})


def test_an_engines_card_options_are_read(explain: Explain) -> None:
    devices = "[{driver: nvidia, count: 2, capabilities: [gpu]}]"
    text = COMPOSE.partition("    environment")[0]
    text += f"    deploy: {{resources: {{reservations: {{devices: {devices}}}}}}}\n"
    train = containers(explain(text, "--json"))["train"]
    assert train["cards"]["count"] == 2
    assert (train["effective"]["kind"], train["effective"]["count"]) == ("exclusive", 2)
    assert "    2 cards from " in explain(text).stdout


def test_a_file_comes_before_a_code_and_says_so(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "2").write_text(COMPOSE)
    monkeypatch.chdir(tmp_path)
    result = cli("explain", "2")
    assert "container train" in result.stdout
    assert result.stderr.startswith(
        "This explains the file 2. It can also mean CUDA_ERROR_OUT_OF_MEMORY"
    )
    assert json.loads(cli("--json", "explain", "2").stdout)["others"][0] == (
        "CUDA_ERROR_OUT_OF_MEMORY"
    )


def test_the_file_of_the_gpushared_that_answers_is_the_nodes(
    cli: Cli, daemon: AnsweringDaemon, tmp_path: Path
) -> None:
    (tmp_path / "compose.yaml").write_text(COMPOSE)
    config = tmp_path / "own.yaml"
    config.write_text("defaults: {policy: burst-share}\n")
    daemon.answers["status"] = [{"ok": True, **STATUS, "config": str(config)}]
    data = json.loads(cli("--json", "explain", str(tmp_path / "compose.yaml")).stdout)
    assert data["node"] == str(config)
    assert data["containers"][0]["effective"]["policy"] == "burst-share"
    config.write_text("defaults: {policy: none-such}\n")
    data = json.loads(cli("--json", "explain", str(tmp_path / "compose.yaml")).stdout)
    assert data["node"].startswith(f"gpushare's defaults ({config}:")
    assert data["containers"][0]["effective"]["policy"] == "fixed-share"


def test_a_configuration_that_is_named_has_to_be_right(explain: Explain) -> None:
    result = explain(COMPOSE, config="defaults: {memory: 4}\n")
    assert result.exit_code == 1
    assert "gpushare.yaml" in result.stderr


def test_what_a_precision_needs_of_a_card_is_a_note(explain: Explain) -> None:
    notes = containers(explain(NEEDS_AMPERE, "--json"))["train"]["notes"]
    needed = "needs a card of compute capability 8.0 or newer; on others, use --dtype=half"
    assert f"--dtype=bfloat16 requests bfloat16, which {needed}" in notes


@pytest.mark.parametrize(("capability", "is_told"), [("7.0", True), ("8.0", False)])
def test_a_card_of_this_node_without_the_precision_is_named(
    explain: Explain, daemon: AnsweringDaemon, capability: str, is_told: bool
) -> None:
    card = {**CARD, "model": "V100", "compute_capability": capability}
    daemon.answers["cards"] = [{"row": card}, {"ok": True}]
    notes = containers(explain(NEEDS_AMPERE, "--json"))["train"]["notes"]
    told = [note for note in notes if "bfloat16" in note]
    assert len(told) == is_told
    assert all("needs compute capability 8.0, and V100" in note for note in told)


def test_keys_that_an_admission_policy_recorded_are_those_of_the_manifest(explain: Explain) -> None:
    text = """\
kind: Pod
metadata:
  annotations:
    gpushare.io/container.a.vendor: |-
      position 0
      limit nvidia.com/gpumem=4096
spec:
  containers:
  - {name: a, image: x}
"""
    found = containers(explain(text, "--json"))["a"]
    [key] = found["keys"]
    assert key["means"] == "the vendors' keys that the cluster's admission policy found"
    assert found["applied"]["memory"] == {
        "text": "4GiB",
        "written": "4096",
        "source": "limit nvidia.com/gpumem",
    }
