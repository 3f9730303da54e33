# SPDX-License-Identifier: Apache-2.0
"""`gpushare explain IMAGE`: what an image says of itself, and what it is given for that alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from gpushare import images
from gpushare.cli.text import WIDTH
from gpushare.images import InspectedImage, NotFound

from .conftest import tenant

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .conftest import Cli
    from .fake_daemon import AnsweringDaemon

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


def test_the_request_of_an_image_is_met_if_the_node_trusts_it(
    cli: Cli, docker: FakeEngine, tmp_path: Path
) -> None:
    docker.images = {"me/greedy:1": {"GPUSHARE_MEMORY": "4GiB"}}
    data = json.loads(cli("--json", "explain", "me/greedy:1").stdout)
    assert data["effective"]["memory"] == "4GiB"
    config = tmp_path / "gpushare.yaml"
    config.write_text("trust: {env: ignore}\n")
    data = json.loads(cli("--json", "explain", "me/greedy:1", "--config", str(config)).stdout)
    assert data["effective"]["kind"] == "none"
    assert data["notes"] == ["GPUSHARE_MEMORY was not read: trust.env is ignore"]


def test_a_container_of_this_node_is_sent_to_where_it_is_shown(
    cli: Cli, docker: FakeEngine, daemon: AnsweringDaemon
) -> None:
    daemon.answers["tenant"] = [{"ok": True, "tenant": tenant("team/job-1/train", 1, 4)}]
    result = cli("explain", "team/job-1/train")
    assert result.exit_code == 0
    assert "`gpushare inspect team/job-1/train`" in result.stdout
    assert "`gpushare why team/job-1/train`" in result.stdout
    assert docker.asked == []


def test_codes_and_messages_are_not_looked_up_as_images(cli: Cli, docker: FakeEngine) -> None:
    docker.images = {"memory": CUDA}
    assert cli("explain", "memory").stdout.startswith("memory\n")
    assert "is unknown" in cli("explain", "a message that nobody wrote").stderr
    assert docker.asked == []
    assert "Did you mean isolation" in cli("explain", "isolaton").stderr
    assert docker.asked == ["isolaton"]
