# SPDX-License-Identifier: Apache-2.0
"""gpushare-probe under the bare simulated driver: its commands, and its answers."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from gpushare import simulator
from gpushare.install import InstallSource
from gpushare.verify import ProbeFailed, ProbeTenant, image
from gpushare.verify.runners import Containerd, EngineFailed

PROBE = InstallSource.of_package().libraries / "gpushare-probe"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    card = simulator.create(tmp_path, "t4")
    return {**os.environ, **card.env, "LD_LIBRARY_PATH": str(simulator.libraries())}


def test_it_knows_what_it_has_written(env: dict[str, str]) -> None:
    sizes = {"cuMemAlloc": (5 << 20) + 24, "cuMemAllocAsync": 1 << 20, "cuArrayCreate": 1 << 20}
    with ProbeTenant("probe", [str(PROBE)], env) as probe:
        probe.start()
        for api, size in sizes.items():
            assert probe.ask(f"alloc {api} {size}")["code"] == 0
        linear = sizes["cuMemAlloc"] + sizes["cuMemAllocAsync"]
        written = {"bytes": linear, "different": 0, "code": 0, "result": "CUDA_SUCCESS"}
        assert probe.ask("write 7") == written | {"event": "write"}
        assert probe.ask("check 7") == written | {"event": "check"}
        assert probe.ask("check 8")["different"] == linear
        # A buffer that was not written.
        assert probe.ask(f"alloc cuMemAlloc {1 << 20}")["code"] == 0
        assert probe.ask("check 7")["different"] > 0


def test_it_keeps_the_card_busy_for_the_requested_time(env: dict[str, str]) -> None:
    with ProbeTenant("probe", [str(PROBE)], env) as probe:
        probe.start()
        probe.tell("busy 1000000 200000000")
        done = probe.answer("busy")
    assert done["code"] == 0
    assert done["took_ns"] >= 200_000_000
    assert done["asked_ns"] == done["kernels"] * 1_000_000
    assert done["kernels"] >= 20  # two batches of 10 ms are launched whatever becomes of the first
    assert done["asked_ns"] <= done["took_ns"]


@pytest.mark.parametrize("words", [["serve"], ["alloc", "many"], ["--what", "1"], ["--card"]])
def test_a_command_line_that_is_wrong_is_an_error(env: dict[str, str], words: list[str]) -> None:
    done = subprocess.run([str(PROBE), *words], check=False, capture_output=True, env=env)
    assert done.returncode == 2
    assert b"usage: gpushare-probe" in done.stderr


def test_a_program_that_is_no_probe_is_recognized_by_its_answer() -> None:
    with (
        ProbeTenant("echo", ["sh", "-c", "echo nothing here; echo why >&2"]) as other,
        pytest.raises(ProbeFailed, match="nothing here"),
    ):
        other.start()


def test_a_probe_that_ends_is_reported_with_its_last_line() -> None:
    with (
        ProbeTenant("gone", ["sh", "-c", "echo out of paper >&2; exit 1"]) as other,
        pytest.raises(ProbeFailed, match="out of paper"),
    ):
        other.start()


def test_its_layer_holds_the_probe_a_loader_and_a_c_library(tmp_path: Path) -> None:
    probe = tmp_path / "probe"
    probe.write_bytes(b"a program")
    with tarfile.open(fileobj=io.BytesIO(image.build(probe))) as archive:
        manifest = json.load(archive.extractfile("manifest.json") or io.BytesIO())
        config = json.load(archive.extractfile(manifest[0]["Config"]) or io.BytesIO())
        layer = archive.extractfile(manifest[0]["Layers"][0])
        assert layer is not None
        with tarfile.open(fileobj=layer) as files:
            names = files.getnames()
    assert manifest[0]["RepoTags"] == [image.TAG]
    assert config["config"]["Cmd"] == [image.PROGRAM]
    assert image.PROGRAM.lstrip("/") in names
    assert any(name.endswith("libc.so.6") for name in names)
    assert any("ld-linux" in name for name in names)


def command(folder: Path, name: str, said: str) -> dict[str, str]:
    """Return an environment whose command `name` fails with `said`."""
    (folder / name).write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    (folder / name).chmod(0o755)
    return {"PATH": str(folder)}


def test_a_missing_containerd_is_reported_in_plain_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "ctr: failed to dial /run/containerd/containerd.sock: context deadline exceeded"
    env = command(tmp_path, "ctr", said)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(EngineFailed) as failure:
        Containerd(Path("/launcher"), env).prepare(Path("/probe"))
    assert str(failure.value) == (
        f"ctr cannot reach its daemon ({said}). Start it, or use another --runtime."
    )
