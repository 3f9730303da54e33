# SPDX-License-Identifier: Apache-2.0
"""Compose files, task definitions of ECS, a container's config.json."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpushare.manifest import read
from gpushare.manifest.compose_file import written_out
from gpushare.manifest.model import ManifestError
from gpushare.quota.request import EngineCards

from .test_kubernetes import manifest, only, texts

if TYPE_CHECKING:
    from pathlib import Path

COMPOSE = """\
    name: app
    x-env: &env
      GPUSHARE_MEMORY: 4GiB
    services:
      train:
        image: pytorch
        runtime: gpushare
        environment:
          <<: *env
          GPUSHARE_CORES: 30
          FROM_SHELL:
          SIZE: ${SIZE}
          LATER: ${LATER:-8GiB}
        annotations: [gpushare.io/placement=spread]
      serve:
        build: .
        environment:
          - GPUSHARE_MEMORY=8GiB
          - HOME
"""


def test_a_service_of_compose_has_its_environment_from_a_mapping_or_a_list() -> None:
    file = manifest(COMPOSE)
    train, serve = file.containers
    assert train.document.kind == "compose"
    assert (train.name, train.image, train.runtime) == ("train", "pytorch", "gpushare")
    assert texts(train.env) == {
        "GPUSHARE_MEMORY": "4GiB",
        "GPUSHARE_CORES": "30",
        "LATER": "8GiB",
    }
    assert train.unknown == ("SIZE", "FROM_SHELL")
    assert texts(train.annotations) == {"gpushare.io/placement": "spread"}
    assert train.env["GPUSHARE_MEMORY"].line == 3
    assert texts(serve.env) == {"GPUSHARE_MEMORY": "8GiB"}
    value = serve.env["GPUSHARE_MEMORY"]
    assert (value.line, value.column, value.key_node is value.value_node) == (18, 9, True)
    assert serve.unknown == ("HOME",)


def test_a_service_overrides_the_service_that_it_extends() -> None:
    file = manifest(
        """\
        services:
          base: {image: i, runtime: gpushare, environment: {A: "1", B: "1"}}
          mid: {extends: {service: base}, environment: [B=2]}
          top: {extends: mid, image: i, environment: {C: "3"}}
          loop: {extends: loop, environment: {A: "1"}}
          other: {extends: {file: x.yaml, service: base}, environment: {A: "1"}}
        """
    )
    _, mid, top, loop, other = file.containers
    assert (texts(mid.env), mid.runtime) == ({"A": "1", "B": "2"}, "gpushare")
    assert texts(top.env) == {"A": "1", "B": "2", "C": "3"}
    assert texts(loop.env) == texts(other.env) == {"A": "1"}
    assert other.runtime == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4GiB", "4GiB"),
        ("${A:-4}GiB", "4GiB"),
        ("${A-4}${B:-}", "4"),
        ("$$A", "$A"),
        ("$A", None),
        ("${A}", None),
        ("${A:?say it}", None),
        ("${A:-${B}}", None),
    ],
)
def test_variables_of_compose_are_written_out_where_they_have_a_default(
    text: str, expected: str | None
) -> None:
    assert written_out(text) == expected


DEPLOY = "deploy: {{resources: {{reservations: {{devices: [{{{}}}]}}}}}}"


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        (
            DEPLOY.format("driver: nvidia, count: 2, capabilities: [gpu]"),
            EngineCards("compose deploy devices", count=2),
        ),
        (
            DEPLOY.format("device_ids: ['0', GPU-1], capabilities: [gpu, utility]"),
            EngineCards("compose deploy devices", devices=("0", "GPU-1")),
        ),
        (
            DEPLOY.format("driver: '${D-nvidia}', count: '${N:-1}', capabilities: [gpu]"),
            EngineCards("compose deploy devices", count=1),
        ),
        (DEPLOY.format("capabilities: [tpu]"), None),
        ("gpus: all", EngineCards("compose gpus", all_cards=True)),
        ("gpus: [{driver: nvidia, count: 1}]", EngineCards("compose gpus", count=1)),
        ("devices: [nvidia.com/gpu=0, /dev/fuse]", EngineCards("compose devices", devices=("0",))),
        ("devices: [nvidia.com/gpu=all]", EngineCards("compose devices", all_cards=True)),
        ("devices: [/dev/fuse]", None),
    ],
)
def test_cards_that_compose_asks_docker_for(service: str, expected: EngineCards | None) -> None:
    container = only(manifest(f"services: {{a: {{image: i, {service}}}}}"))
    assert container.cards == expected


TASK = {
    "family": "train",
    "containerDefinitions": [
        {
            "name": "a",
            "image": "i",
            "environment": [{"name": "CUDA_MPS_CLIENT_PRIORITY", "value": "1"}],
            "resourceRequirements": [
                {
                    "type": "GPU",
                    "sharingStrategy": {"nvidiaMps": {"memory": 4096, "maxComputePercent": 50}},
                }
            ],
        },
        {"name": "b", "image": "i", "resourceRequirements": [{"type": "GPU", "value": "2"}]},
    ],
}


def test_a_task_definition_of_cloudformation_has_capital_letters() -> None:
    container = only(
        manifest(
            """\
            Resources:
              Bucket: {Type: AWS::S3::Bucket}
              Task:
                Type: AWS::ECS::TaskDefinition
                Properties:
                  Family: !Sub "x-${AWS::Region}"
                  ContainerDefinitions:
                    - Name: a
                      Image: !Ref Image
                      Environment: [{Name: A, Value: b}]
                      ResourceRequirements:
                        - Type: GPU
                          SharingStrategy: {NvidiaMps: {Memory: 4096}}
            """
        )
    )
    assert texts(container.task) == {"nvidiaMps.memory": "4096"}
    assert texts(container.env) == {"A": "b"}
    assert container.task["nvidiaMps.memory"].line == 13


def test_a_missing_or_binary_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="none: No such file or directory; name another file"):
        read(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"a: b\n\xff\n")
    with pytest.raises(ManifestError, match=r"bytes:2: not UTF-8 text; save it as UTF-8"):
        read(tmp_path / "bytes")
