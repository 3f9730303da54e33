# SPDX-License-Identifier: Apache-2.0
"""What a service of a compose file requests: what `docker compose config` makes of it.

`compose/config.yaml` is what Debian 13's printed; tests/system/engines/test_compose_config.py
compares it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.manifest import read
from gpushare.manifest.check import check
from gpushare.manifest.convert import convert
from gpushare.manifest.convert.conversion import CannotConvert
from gpushare.manifest.convert.targets import TARGETS
from gpushare.manifest.model import INFO, Container
from gpushare.manifest.request import request_on_node
from gpushare.quota.request import EngineCards
from gpushare.quota.request_policy import RequestPolicy

CORPUS = Path(__file__).parent / "compose"
DEPLOY = "deploy: {{resources: {{reservations: {{devices: [{{{}}}]}}}}}}"


def services(path: Path) -> dict[str, Container]:
    return {container.name: container for container in read(path).containers}


def only(service: str) -> Container:
    (container,) = read("-", f"services: {{a: {{image: i, {service}}}}}").containers
    return container


@pytest.mark.parametrize("name", services(CORPUS / "compose.yaml"))
def test_a_service_is_read_as_docker_compose_config_prints_it(name: str) -> None:
    written, printed = (services(CORPUS / file)[name] for file in ("compose.yaml", "config.yaml"))
    texts = [{name: one.text for name, one in of.env.items()} for of in (written, printed)]
    assert texts[0] == texts[1]
    assert written.cards == printed.cards
    assert (written.unresolved, printed.unresolved) == ((), ())


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        (DEPLOY.format("driver: nvidia, count: 2, capabilities: [gpu]"), EngineCards("", count=2)),
        (
            DEPLOY.format("device_ids: ['0', GPU-1], capabilities: [gpu, utility]"),
            EngineCards("", devices=("0", "GPU-1")),
        ),
        (DEPLOY.format("count: 0, capabilities: [gpu]"), None),
        (DEPLOY.format("capabilities: [tpu]"), None),
        ("gpus: all", EngineCards("", all_cards=True)),
        # Docker passes the same for `--gpus 1` as for this card.
        ("devices: [nvidia.com/gpu=0, /dev/fuse]", EngineCards("", count=1)),
        ("devices: [nvidia.com/gpu=1]", EngineCards("", devices=("1",))),
    ],
)
def test_cards_that_compose_asks_docker_for(service: str, expected: EngineCards | None) -> None:
    container = only(service)
    source = container.cards.source if container.cards else ""
    assert (container.cards, container.unresolved) == (
        expected and EngineCards(source, expected.count, expected.devices, (), expected.all_cards),
        (),
    )


@pytest.mark.parametrize(
    ("service", "named"),
    [
        (DEPLOY.format("count: '${GPUS}', capabilities: [gpu]"), "deploy devices ${GPUS}"),
        (DEPLOY.format("driver: '${D}', capabilities: [gpu]"), "deploy devices ${D}"),
        (
            DEPLOY.format("driver: nvidia.com/gpu, capabilities: [gpu]"),
            "deploy devices driver nvidia.com/gpu (Docker has nvidia and cdi)",
        ),
        (
            DEPLOY.format("driver: cdi, capabilities: [gpu]"),
            "deploy devices driver cdi (it takes device_ids alone)",
        ),
        (
            DEPLOY.format("count: 1, device_ids: ['0'], capabilities: [gpu]"),
            "deploy devices count 1 (device_ids is there too)",
        ),
        ("gpus: 2", "gpus 2"),
        ("gpus: all, devices: [nvidia.com/gpu=1]", "compose gpus, compose devices"),
        ("devices: ['nvidia.com/gpu=${N}']", "devices nvidia.com/gpu=${N}"),
        ("environment: {GPUSHARE_MEMORY: '${M}'}", "environment GPUSHARE_MEMORY"),
        ("environment: [CUDA_DEVICE_MEMORY_LIMIT]", "environment CUDA_DEVICE_MEMORY_LIMIT"),
        ("annotations: {gpushare.io/memory: '${M}'}", "annotation gpushare.io/memory"),
        ("env_file: a.env", "env_file a.env (no such file)"),
        ("extends: {file: b.yaml, service: a}", "extends b.yaml"),
    ],
)
def test_what_is_not_resolved_is_named_and_no_request_is_predicted(
    service: str, named: str
) -> None:
    file = read("-", f"services: {{a: {{image: i, {service}}}}}")
    (container,) = file.containers
    assert container.unresolved == (named,)
    there = request_on_node(container, file, terms_of=lambda _: RequestPolicy())
    assert (there.requested, there.effective, there.refused) == (None, None, "")
    assert there.notes == (f"{named}: not resolved, so no request is predicted",)
    keys = [one.key for one in check(file, strict=True).findings if one.level == INFO]
    assert named in keys


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("A='1\n2'\n", "env_file (several lines in the value of A)"),
        ("no line\n", "env_file a.env (a line that is no NAME=VALUE)"),
        ("A=" + "x" * (1 << 16), "env_file a.env (larger than 64 KiB: not a file of variables)"),
        ("GPUSHARE_MEMORY=$M\n", "environment GPUSHARE_MEMORY"),
    ],
)
def test_an_env_file_that_is_not_understood_is_named(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "a.env").write_text(text)
    (tmp_path / "compose.yaml").write_text("services: {a: {image: i, env_file: a.env}}")
    assert services(tmp_path / "compose.yaml")["a"].unresolved == (named,)


def test_a_request_in_an_env_file_is_not_converted(tmp_path: Path) -> None:
    (tmp_path / "a.env").write_text("CUDA_DEVICE_MEMORY_LIMIT=4g\n")
    file = tmp_path / "compose.yaml"
    file.write_text("services: {a: {image: i, env_file: a.env}}")
    with pytest.raises(CannotConvert, match="is in an env_file, which is not edited"):
        convert(read(file), TARGETS["gpushare"])


DEVICES = """\
services:
  a:
    image: i
    deploy:
      resources:
        reservations:
          devices: [{driver: nvidia, count: 2, capabilities: [gpu]}]
  b: {extends: a, environment: [X=1]}
  c:
    image: i
    gpus: [{device_ids: [GPU-1]}]
"""
COUNTED = """\
services:
  a:
    image: i
    environment:
      GPUSHARE_COUNT: "2"
    runtime: gpushare
  b: {extends: a, environment: [X=1]}
  c:
    image: i
    environment:
      GPUSHARE_DEVICES: GPU-1
    runtime: gpushare
"""


@pytest.mark.parametrize(
    ("service", "text"),
    [
        (DEVICES, COUNTED),
        *((text, text) for text in ("services: {a: {image: i, gpus: all}}\n",)),
        *((text, text) for text in ("services: {a: {image: i, devices: [nvidia.com/gpu=1]}}\n",)),
    ],
)
def test_a_request_for_devices_of_docker_becomes_one_of_gpushare(service: str, text: str) -> None:
    assert convert(read("-", service), TARGETS["gpushare"]).text == text
    assert read("-", text).containers[-1].unresolved == ()
