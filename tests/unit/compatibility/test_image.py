# SPDX-License-Identifier: Apache-2.0
"""Which runtimes an image has, and that a hostile one leads nowhere but into itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpushare.compatibility import image
from gpushare.compatibility import image as images
from gpushare.compatibility.model import read_model
from gpushare.compatibility.rules import Image
from gpushare.errors import UserError
from gpushare.oci import cuda_compat
from gpushare.oci.elf import platform_of
from gpushare.oci.rootfs import Rootfs

PLATFORM = platform_of("x86_64")


NVIDIA = {
    "PATH": "/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin",
    "LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
}


def put(root: Path, path: str, link: str = "") -> None:
    """Put an empty file there, and `link` beside it, as packages of NVIDIA do."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    if link:
        (file.parent / link).symlink_to(file.name)


def look(rootfs: Rootfs, *args: str, **variables: str) -> Image:
    return images.inspect_image(
        rootfs, {**NVIDIA, **variables}, args, PLATFORM, cuda_compat.find(rootfs)
    )


def found(rootfs: Rootfs, **variables: str) -> list[tuple[str, str]]:
    return [
        (".".join(map(str, one.version)), one.where) for one in look(rootfs, **variables).runtimes
    ]


def test_the_runtime_of_nvidias_images_is_found(root: Path, rootfs: Rootfs) -> None:
    put(root, "usr/local/cuda-12.4/lib64/libcudart.so.12.4.127", "libcudart.so.12")
    (root / "usr/local/cuda").symlink_to("cuda-12.4")
    [first, *_] = found(rootfs)
    assert first == ("12.4.127", "/usr/local/cuda/lib64/libcudart.so.12.4.127")
    assert {version for version, _ in found(rootfs)} == {"12.4.127"}


@pytest.mark.parametrize(
    ("packages", "part", "wheel", "version"),
    [
        ("usr/local/lib/python3.12/site-packages", "cuda_runtime", "_cu12-12.8.90", "12.8.90"),
        ("usr/lib/python3/dist-packages", "cuda_runtime", "_cu12-12.0.107", "12.0.107"),
        ("opt/venv/lib/python3.11/site-packages", "cu13", "-13.0.96", "13.0.96"),
        ("app/.venv/lib/python3.11/site-packages", "cu13", "-13.0.96", "13.0.96"),
    ],
)
def test_a_wheels_version_is_that_of_its_package(
    packages: str, part: str, wheel: str, version: str, root: Path, rootfs: Rootfs
) -> None:
    major = version.partition(".")[0]
    name = f"{packages}/nvidia/{part}/lib/libcudart.so.{major}"
    put(root, name)
    assert found(rootfs, PATH="/app/.venv/bin:/usr/bin") == [(major, f"/{name}")]
    put(root, f"{packages}/nvidia_cuda_runtime{wheel}.dist-info/METADATA")
    assert found(rootfs, PATH="/app/.venv/bin:/usr/bin") == [(version, f"/{name}")]


def test_the_environment_makes_a_bare_name_finer_and_corrects_no_file(
    root: Path, rootfs: Rootfs
) -> None:
    put(root, "opt/conda/lib/libcudart.so.12")
    assert found(rootfs, CUDA_VERSION="12.6.3")[0][0] == "12.6.3"
    assert found(rootfs, CUDA_VERSION="11.8.0")[0][0] == "12"
    put(root, "opt/conda/lib/libcudart.so.12.1.105")
    assert found(rootfs, CUDA_VERSION="12.6.3")[0][0] == "12.1.105"


def test_many_toolkits_and_paths_are_looked_at_up_to_a_bound(root: Path, rootfs: Rootfs) -> None:
    for number in range(64):
        put(root, f"usr/local/cuda-12.{number}/lib64/libcudart.so.12.{number}.1")
        put(root, f"p{number:02}/libcudart.so.12.{number}.2")
    many = ":".join(f"/p{number:02}" for number in range(64))
    assert len(found(rootfs, LD_LIBRARY_PATH=many)) <= 16
    assert len(found(rootfs)) <= 8


@pytest.mark.parametrize(
    ("args", "variables", "expected"),
    [
        (["vllm", "serve", "--dtype=bfloat16"], {}, {"bfloat16": "--dtype=bfloat16"}),
        (["vllm", "--dtype", "bf16", "x"], {}, {"bfloat16": "--dtype=bf16"}),
        (["sh", "-c", "exec vllm --dtype bfloat16"], {}, {"bfloat16": "--dtype=bfloat16"}),
        (["sglang", "--quantization", "fp8"], {}, {"fp8": "--quantization=fp8"}),
        (["vllm", "--kv-cache-dtype=fp8_e5m2"], {}, {"fp8": "--kv-cache-dtype=fp8_e5m2"}),
        (["tgi"], {"DTYPE": "bfloat16", "QUANTIZE": "fp8"}, {"bfloat16": "DTYPE=bfloat16"}),
        (["vllm", "--dtype=half"], {}, {}),
        (["vllm", "--dtype"], {}, {}),
        (["echo", "bfloat16"], {"MODEL": "x-fp8"}, {}),
    ],
)
def test_the_requested_precisions_are_read_from_the_command_line(
    args: list[str], variables: dict[str, str], expected: dict[str, str]
) -> None:
    assert dict(image.requested_precisions(args, variables)).items() >= expected.items()
    if not expected:
        assert image.requested_precisions(args, variables) == ()


@pytest.mark.parametrize(
    ("config", "args", "expected"),
    [
        ('{"torch_dtype": "bfloat16"}', [], {"bfloat16": "config.json: torch_dtype=bfloat16"}),
        ('{"text_config": {"dtype": "bfloat16"}}', ["--dtype=auto"], {"bfloat16"}),
        ('{"torch_dtype": "bfloat16"}', ["--dtype=half"], {}),  # is converted
        ('{"quantization_config": {"quant_method": "fp8"}}', ["--dtype=half"], {"fp8"}),
        ('{"quantization_config": {"quant_algo": "NVFP4"}}', [], {"fp4"}),
        ('{"quantization_config": {"format": "float-quantized"}}', [], {"fp8"}),
        ('{"torch_dtype": ["bfloat16"], "quantization_config": 1}', [], {}),
        ("[1]", [], {}),
    ],
)
def test_the_formats_of_a_model_are_read_from_its_config(
    tmp_path: Path, config: str, args: list[str], expected: dict[str, str] | set[str]
) -> None:
    (tmp_path / "config.json").write_text(config)
    found = dict(image.requested_precisions(args, {}, read_model(tmp_path)))
    assert found.keys() == set(expected)
    assert found == expected or isinstance(expected, set)


def test_a_config_that_is_none_of_a_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(UserError, match="No such file"):
        read_model(tmp_path)
    os.mkfifo(path)
    with pytest.raises(UserError, match="not a regular file"):
        read_model(tmp_path)
    path.unlink()
    for text, why in ((" " * (1 << 20) + "1", "larger than 1 MiB"), ("{", "not JSON")):
        path.write_text(text)
        with pytest.raises(UserError, match=why):
            read_model(tmp_path)
