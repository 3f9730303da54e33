# SPDX-License-Identifier: Apache-2.0
"""`gpushare compat`: what it prints, its exit status, and which engines it queries."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from gpushare.protocol import CODE_NOT_FOUND

from .conftest import CARD, tenant
from .fake_daemon import AnsweringDaemon, refusal, rows

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Cli


def bundle(folder: Path, *env: str, files: tuple[str, ...] = (), args: str = "sh") -> str:
    for name in files:
        file = folder / "rootfs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (folder / "rootfs").mkdir(parents=True, exist_ok=True)
    document = {"root": {"path": "rootfs"}, "process": {"args": args.split(), "env": list(env)}}
    (folder / "config.json").write_text(json.dumps(document))
    return str(folder)


def test_an_image_that_fits_is_ok(cli: Cli, daemon: AnsweringDaemon, tmp_path: Path) -> None:
    path = bundle(tmp_path / "b", files=("usr/local/cuda/lib64/libcudart.so.12.9.79",))
    result = cli("compat", path)
    assert result.output == (
        f"bundle {path} on driver 580.159.04 (CUDA 13.0), 1 card: NVIDIA H200 (9.0), interposer\n"
        "ok     CUDA 12.9 in /usr/local/cuda/lib64/libcudart.so.12.9.79 runs on a driver with CUDA "
        "13.0 (driver)\n"
    )
    assert result.exit_code == 0
    assert [request["op"] for request in daemon.requests] == ["status", "cards"]


@pytest.mark.parametrize(
    ("env", "args", "status", "told"),
    [
        ("CUDA_VERSION=14.0.1", "sh", 3, "refuse CUDA 14.0 is newer than the driver's CUDA 13.0"),
        ("CUDA_VERSION=13.2.0", "sh", 4, "warn   CUDA 13.2 is newer than the driver's CUDA 13.0"),
        ("CUDA_VERSION=11.8.0", "sh", 4, "warn   CUDA 11.8 in CUDA_VERSION is 2 major versions"),
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


def test_it_judges_for_another_machine_without_a_daemon(cli: Cli, tmp_path: Path) -> None:
    path = bundle(tmp_path / "b", "CUDA_VERSION=12.4.1", args="vllm serve --dtype bfloat16")
    result = cli("compat", path, "--driver", "550.54.15", "--cc", "7.0", "--brand", "Tesla")
    assert "on driver 550.54.15 (CUDA 12.4), 1 card: a card (7.0), interposer\n" in result.output
    assert "--dtype=bfloat16 requests bfloat16" in result.output
    assert result.exit_code == 4
    assert cli("compat", path, "--driver", "470.57.02").exit_code == 3
    assert cli("compat", path, "--cuda", "12.4").exit_code == 0
    assert cli("compat", path, "--cuda", "11.8", "--driver", "999.1").exit_code == 3
    assert cli("compat", path, "--cuda", "13.0", "--cc", "8.0", "--mig").exit_code == 0
    mps = ("compat", path, "--cuda", "13.0", "--cc", "8.0", "--backend", "mps")
    assert cli(*mps).exit_code == 0
    assert cli(*mps, "--mig").exit_code == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--driver", "new"), "'new' is not a version. Use, for example, 580.65.06"),
        (("--cc", "7.0", "--cc", "x"), "'x' is not a version"),
        (("--driver", "999.1"), "the CUDA version of this driver is unknown. Add --cuda"),
        (("--cc", "8.0"), "the CUDA version of this driver is unknown. Add --cuda"),
        (("--mig",), "--brand and --mig require --driver, --cuda or --cc"),
        (("--backend", "vgpu"), "'vgpu' is not one of"),
    ],
)
def test_a_mistyped_argument_is_a_usage_error(
    words: tuple[str, ...], told: str, cli: Cli, tmp_path: Path
) -> None:
    result = cli("compat", bundle(tmp_path / "b"), *words)
    assert told in result.output
    assert result.exit_code == 2


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
    assert said["machine"]["driver"] == "580.159.04"


def test_json_has_every_figure(cli: Cli, daemon: AnsweringDaemon, tmp_path: Path) -> None:
    assert daemon.acknowledge
    path = bundle(
        tmp_path / "b",
        "NVIDIA_REQUIRE_CUDA=cuda>=12.4",
        files=(
            "usr/local/cuda/lib64/libcudart.so.14.0.1",
            "usr/local/cuda/compat/libcuda.so.570.10.01",
        ),
    )
    result = cli("compat", path, "--json")
    said = json.loads(result.output)
    assert result.exit_code == 3
    assert said["image"] == {
        "runtimes": [{"version": "14.0.1", "where": "/usr/local/cuda/lib64/libcudart.so.14.0.1"}],
        "requires": {"NVIDIA_REQUIRE_CUDA": "cuda>=12.4"},
        "requires_disabled": False,
        "cuda_compat": "570.10.01",
        "precisions": {},
    }
    assert said["machine"]["baseline"] == "13.5"
    first = said["findings"][0]
    assert (first["level"], first["rule"]) == ("refuse", "driver-too-old")
    assert first["numbers"]["driver"] == "580.159.04"
    assert first["fix"] == "use an image with CUDA 13.0 or older"


def test_a_path_that_is_no_image_is_reported(
    cli: Cli, daemon: AnsweringDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.answers["tenant"] = refusal(CODE_NOT_FOUND, "no container", candidates=[])
    monkeypatch.setattr("gpushare.images._PROGRAMS", ())
    result = cli("compat", "cuda:12.4")
    assert (
        "neither docker nor podman is installed. Name a path, for example ./rootfs"
    ) in result.output
    assert result.exit_code == 1


def test_an_image_cannot_write_to_the_terminal(
    cli: Cli, daemon: AnsweringDaemon, tmp_path: Path
) -> None:
    assert daemon.acknowledge
    result = cli("compat", bundle(tmp_path / "b", "NVIDIA_REQUIRE_X=\x1b[2Ja\nb>=1"))
    assert "\x1b" not in result.output
    assert len(result.output.splitlines()) == 3
