# SPDX-License-Identifier: Apache-2.0
"""`gpushare convert`, `validate` and `compat`: output and exit status."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare import checks
from gpushare.engines import ENGINES

from .conftest import CARD, Cli, tenant
from .fake_daemon import AnsweringDaemon, rows

POD = """\
kind: Pod
metadata: {name: p}
spec:
  containers:
  - name: c
    image: i
    resources:
      limits:
        nvidia.com/gpu: 1
        nvidia.com/gpumem: 3000
        nvidia.com/gpucores: 30
"""


OURS = """\
kind: Pod
metadata: {name: p, annotations: {gpushare.io/memory: 3000MiB, gpushare.io/cores: "30"}}
spec:
  runtimeClassName: gpushare
  containers:
  - name: c
    image: i
"""


@pytest.fixture
def pod(tmp_path: Path) -> Path:
    path = tmp_path / "pod.yaml"
    path.write_text(POD)
    return path


def test_it_writes_to_stdout_and_leaves_the_file(cli: Cli, pod: Path) -> None:
    result = cli("convert", str(pod), "--to", "gpushare")
    assert result.exit_code == 0, result.output
    assert result.stdout == OURS
    assert pod.read_text() == POD
    document = json.loads(cli("convert", str(pod), "--to", "gpushare", "--json").stdout)
    assert (document["text"], document["changed"]) == (OURS, True)
    assert [one["name"] for one in document["containers"]] == ["c"]


def test_in_place_keeps_mode_and_link(cli: Cli, pod: Path, tmp_path: Path) -> None:
    pod.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to(pod)
    result = cli("convert", str(link), "--to", "gpushare", "--in-place")
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert pod.read_text() == OURS
    assert pod.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()
    again = cli("convert", str(link), "--to", "gpushare", "--in-place")
    assert "nothing to change" in again.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.yaml", "pod.yaml"]


@pytest.mark.parametrize("where", [["--in-place"], ["--json"], []], ids=str)
def test_strict_writes_nothing_where_something_has_none(
    cli: Cli, pod: Path, where: list[str]
) -> None:
    result = cli("convert", str(pod), "--to", "qgpu", "--strict", *where)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "nothing was written: " in result.stderr
    assert pod.read_text() == POD


WRONG = "services: {a: {image: i, environment: {GPUSHARE_MEMORY: 4Q, GPUSHARE_CORES: 130}}}\n"


WARNED = "services: {a: {image: i, runtime: gpushare, environment: {GPUSHARE_CORES: 30}}}\n"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def write(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return str(path)

    return write


def test_every_problem_of_every_file_is_reported(cli: Cli, write: Callable[..., str]) -> None:
    first, second = write("a.yaml", WRONG), write("b.yaml", "a: [\n")
    result = cli("validate", "--quiet", first, second)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"{first}:1:57: env GPUSHARE_MEMORY=4Q: not a size. Write e.g. 4GiB.",
        (
            f"{first}:1:77: env GPUSHARE_CORES=130: not a share of a card in percent. "
            "Write a whole number from 1 to 100."
        ),
        f"{first}: 2 problems (1 container, 1 requests a GPU)",
        f"{second}:2:1: not YAML: did not find expected node content",
        f"{second}: 1 problem (0 containers, 0 request a GPU)",
    ]
    folder = Path(first).parent
    assert cli("validate", "--quiet", str(folder)).stdout == result.stdout
    (folder / "empty").mkdir()
    assert "contains no .yaml, .yml" in cli("validate", str(folder / "empty")).stderr


def test_warnings_alone_are_another_status_where_strict(
    cli: Cli, write: Callable[..., str]
) -> None:
    file = write("compose.yaml", WARNED)
    assert cli("validate", file).exit_code == 4
    assert cli("validate", "--lenient", file).exit_code == 0
    assert "1 warning (1 container" in cli("validate", "--lenient", file).stdout


def test_the_request_for_devices_that_this_docker_refuses_is_a_warning(
    cli: Cli, write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = ENGINES["docker"]
    monkeypatch.setattr(type(docker), "is_present", lambda _: True)
    answers = [checks.Check("ok", "refused", "use a variable"), checks.Check("ok", "accepted")]
    monkeypatch.setattr(checks, "check_docker_gpus", lambda: answers.pop(0))
    file = write("compose.yaml", "services: {a: {image: i, gpus: all}}\n")
    refused, accepted = (cli("validate", "--quiet", file) for _ in range(2))
    assert refused.stdout.startswith(f"{file}:1:32: warning: services.a.gpus: refused by dockerd")
    assert (refused.exit_code, accepted.exit_code) == (4, 0)


def bundle(folder: Path, *env: str, files: tuple[str, ...] = (), args: str = "sh") -> str:
    for name in files:
        file = folder / "rootfs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (folder / "rootfs").mkdir(parents=True, exist_ok=True)
    document = {"root": {"path": "rootfs"}, "process": {"args": args.split(), "env": list(env)}}
    (folder / "config.json").write_text(json.dumps(document))
    return str(folder)


@pytest.mark.parametrize(
    ("env", "args", "status", "told"),
    [
        ("CUDA_VERSION=13.2.0", "sh", 4, "warn   CUDA 13.2 is newer than the driver's CUDA 13.0"),
        ("NVIDIA_REQUIRE_CUDA=cuda>=13.1", "sh", 3, "refuse NVIDIA_REQUIRE_CUDA requires cuda>="),
        ("NVIDIA_REQUIRE_CUDA=brand=nvidia", "sh", 0, "ok     NVIDIA_REQUIRE_CUDA is met"),
        ("PATH=/bin", "vllm --quantization nvfp4", 4, "warn   --quantization=nvfp4 requests fp4"),
    ],
)
def test_the_result_is_the_exit_status(
    env: str,
    args: str,
    status: int,
    told: str,
    cli: Cli,
    daemon: AnsweringDaemon,
    tmp_path: Path,
) -> None:
    assert daemon.acknowledge
    result = cli("compat", bundle(tmp_path / "b", env, args=args))
    assert told in result.output
    assert result.exit_code == status


def test_the_formats_of_numbers_are_described_and_refuse_nothing(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    file = tmp_path / "compose.yaml"
    file.write_text(
        "services: {llm: {image: i, runtime: gpushare, command: vllm --dtype=bfloat16 m, "
        "environment: {GPUSHARE_MEMORY: 8GiB}}}"
    )
    dtype = (
        "--dtype=bfloat16 requests bfloat16, which needs a card of compute capability 8.0 or newer"
    )
    for words in (("validate", str(file)), ("explain", str(file))):
        alone, with_model = cli(*words), cli(*words, "--model", str(tmp_path))
        assert alone.exit_code == with_model.exit_code == 0
        assert dtype in " ".join(alone.stdout.split())
        assert "quant_method=fp8" not in alone.stdout
        assert "quant_method=fp8 requests fp8" in with_model.stdout
    assert cli("explain", "2", "--model", str(tmp_path)).exit_code == 2


def test_the_formats_of_a_model_are_judged_by_this_machines_card(
    cli: Cli, daemon: AnsweringDaemon, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    path = bundle(tmp_path / "b", "CUDA_VERSION=12.4.1")
    daemon.answers["cards"] = rows({**CARD, "compute_capability": "7.0"})
    told = cli("compat", path, "--model", str(tmp_path)).stdout
    assert "config.json: quant_method=fp8 requests fp8" in told
    assert "without a config.json" in cli("compat", f"{path}/rootfs").output


def test_a_container_of_gpushare_is_judged_on_the_cards_that_it_has(
    cli: Cli, daemon: AnsweringDaemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    (root / "usr/lib64").mkdir(parents=True)
    (root / "usr/lib64/libcudart.so.13.0.96").touch()
    train = tenant("train", 1, 4, pid=os.getpid())
    old = {**CARD, "index": 1, "uuid": "GPU-1", "model": "V100", "compute_capability": "7.0"}
    daemon.answers |= {
        "tenant": [{"ok": True, "tenant": train}],
        "cards": rows(CARD, old),
    }
    monkeypatch.setattr("gpushare.images._process_strings", lambda *_: ["CUDA_VERSION=13.0.1"])
    result = cli("compat", "train", "--json")
    said = json.loads(result.output)
    assert (said["kind"], said["result"]) == ("container", "ok")
    assert [card["name"] for card in said["machine"]["cards"]] == ["NVIDIA H200"]
    assert (said["machine"]["driver"], said["machine"]["backend"]) == ("580.159.04", "interposer")
    train["isolation"] = "exclusive"
    said = json.loads(cli("compat", "train", "--json").output)
    assert said["machine"]["backend"] == "exclusive"
