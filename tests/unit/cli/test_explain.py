# SPDX-License-Identifier: Apache-2.0
"""`gpushare explain` of codes and topics, of files and of images, with no daemon there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import Result

from gpushare import images
from gpushare.cli import validate
from gpushare.cli.text import WIDTH
from gpushare.images import InspectedImage, NotFound
from gpushare.manifest import read

from .conftest import STATUS, Cli
from .fake_daemon import AnsweringDaemon


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's engines are not asked."""
    monkeypatch.setattr(images, "installed_engines", list)


def test_an_unknown_word_is_an_error_with_suggestions(cli: Cli) -> None:
    result = cli("explain", "isolatoin")
    assert result.exit_code == 1
    assert result.stderr.startswith('gpushare: "isolatoin" is unknown. Did you mean ')
    assert "isolation" in result.stderr
    other = cli("explain", "qqqqqq")
    assert (other.exit_code, other.stdout) == (1, "")
    assert "lists the topics" in other.stderr
    assert "no such file, container" in other.stderr


def test_a_file_comes_before_a_code_and_a_folder_is_validated(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "It can also mean:\n  NVML_ERROR_INVALID_ARGUMENT: " in cli("explain", "2").stdout
    Path("2").write_text(COMPOSE)
    result = cli("explain", "2")
    assert result.stdout.startswith("compose, container train")
    assert "It can also mean CUDA_ERROR_OUT_OF_MEMORY" in " ".join(result.stderr.split())
    assert "run `gpushare validate ./`" in cli("explain", "./").stderr


def test_too_many_files_are_refused_and_name_the_limit(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcd":
        (tmp_path / f"{name}.yaml").write_text(COMPOSE)
    (tmp_path / "c.yaml").write_text("[")  # it may have been long to read
    values = read(tmp_path / "a.yaml").values
    monkeypatch.setattr(validate, "_MOST_VALUES", 2 * values + 1)
    result = cli("validate", str(tmp_path))
    assert result.exit_code == 1
    assert f"{tmp_path}/c.yaml: 1 problem" in result.stdout
    assert (
        f"{tmp_path}/d.yaml: not checked, nor is any file after it: those before have over "
        f"{2 * values + 1} values. Check fewer files at a time" in result.stdout
    )


@pytest.mark.parametrize("word", ["\x1b[31m", "../../etc/passwd", "a" * 5000])
def test_an_argument_cannot_write_to_the_terminal(cli: Cli, word: str) -> None:
    result = cli("explain", word)
    assert result.exit_code == 1
    assert "\x1b" not in result.output
    assert len(result.output) < 400


Explain = Callable[..., Result]


COMPOSE = """\
services:
  train:
    image: x
    environment:
      GPUSHARE_MEMORY: 4GiB
      GPUSHARE_CORES: "30"
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


PODS = """\
kind: Pod
metadata: {name: p, annotations: {gpushare.io/%s}}
spec: {containers: [{name: a, image: i, resources: {limits: {%s}}}, {name: b, image: i}]}
"""
LIMIT = "gpushare.io/memory-1gib: 4"


@pytest.mark.parametrize(
    ("annotation", "limit", "told"),
    [
        ("none: x", "", '"x" (gpushare): -> not a gpushare key'),
        ("memory: 4Q", "", '"4Q" (gpushare): Memory of each card. -> is not a size'),
        ("memory: 4GiB", "", "annotation gpushare.io/memory names no container."),
        ("container.a.vendor: nvidia.com/gpumem=1", "", "admission policy found"),
        *(
            ("container.a.cores: '30'", "nvidia.com/gpumem: 4096", told)
            for told in (
                'line 3: limit nvidia.com/gpumem "4096" (HAMi): Memory of each card,',
                "limit nvidia.com/gpumem; translated by HAMi's device plugin, to CUDA_DEVICE",
                "Combined request cores=30 memory=4GiB Applied on the node cores=30 from an",
            )
        ),
        ("container.a.cores: 30", LIMIT, f"scheduler allocates limit {LIMIT.replace(': ', '=')}."),
    ],
)
def test_what_a_pod_requests_is_explained(
    explain: Explain, annotation: str, limit: str, told: str
) -> None:
    assert told in " ".join(explain(PODS % (annotation, limit)).stdout.split())


def test_the_cards_of_an_engine_and_files_that_gpushared_cannot_read(explain: Explain) -> None:
    for cards, told in (
        ("gpus: all", "all cards from compose gpus"),
        ("devices: [nvidia.com/gpu=0, nvidia.com/gpu=1]", "2 cards from compose devices"),
    ):
        text = f"services: {{a: {{image: i, runtime: gpushare, {cards}}}}}\n"
        assert told in explain(text).stdout
    spec = '{"ociVersion": "1.0", "process": {"args": ["x"]}, "root": {"path": "r"}, "mounts": 5}'
    wrong = explain(spec, name="config.json")
    assert (wrong.exit_code, "mounts is not a list" in wrong.stderr) == (1, True)
    wrong = explain(COMPOSE, config="max_tenant: 4\n")
    assert (wrong.exit_code, "did you mean max_tenants?" in wrong.stderr) == (1, True)


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


CUDA = {
    "CUDA_VERSION": "12.4.1",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    "NVIDIA_REQUIRE_CUDA": "cuda>=12.4",
}


@dataclass
class FakeEngine:
    """docker, with some images; `asked` are the names that it was asked for."""

    images: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    why: str = ""
    asked: list[str] = field(default_factory=list)

    def image(self, name: str) -> InspectedImage | None:
        self.asked.append(name)
        if self.why:
            raise NotFound(self.why)
        found = self.images.get(name)
        return None if found is None else InspectedImage("image", name, found)


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    made = FakeEngine({"cuda:12.4": CUDA, "plain": {}})
    monkeypatch.setattr(images, "installed_engines", lambda: [FakeEngine(why="no daemon"), made])
    return made


@pytest.mark.usefixtures("docker")
def test_an_images_variables_are_shown_as_no_request(cli: Cli) -> None:
    data = json.loads(cli("--json", "explain", "cuda:12.4").stdout)
    assert (data["kind"], data["name"], data["cuda"]) == ("image", "cuda:12.4", "12.4.1")
    said = {row["key"]: row for row in data["keys"]}
    assert said["NVIDIA_VISIBLE_DEVICES"]["vendor"] == "NVIDIA"
    assert said["NVIDIA_REQUIRE_CUDA"]["value"] == "cuda>=12.4"
    assert (data["effective"]["kind"], data["applied"]) == ("none", {})
    assert "alone requests no GPU" in data["effective"]["why"]
    text = cli("explain", "cuda:12.4").stdout
    assert text.startswith("image cuda:12.4\n  Request of the image\n    env NVIDIA_VISIBLE")
    assert "The image has CUDA 12.4.1. To check whether it runs on this machine, run" in text
    assert max(map(len, text.splitlines())) <= WIDTH
