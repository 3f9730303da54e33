# SPDX-License-Identifier: Apache-2.0
"""gpushare.yaml: what it may say, and that an error names line, key, value and fix."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpushare import config
from gpushare.config import Config, ConfigError, parse

FILE = Path("/etc/gpushare/gpushare.yaml")


def test_an_empty_file_is_the_defaults() -> None:
    assert parse("# nothing\n", FILE) == Config(file=FILE)


def test_the_shipped_file_is_the_defaults() -> None:
    shipped = Path(__file__).parents[3] / "configs" / "gpushare.yaml"
    assert parse(shipped.read_text(), FILE) == Config(file=FILE)


def test_the_shipped_file_shows_every_key_with_a_value_that_is_accepted() -> None:
    shipped = Path(__file__).parents[3] / "configs" / "gpushare.yaml"
    told = "\n".join(re.findall(r"^# ( *[a-z_]+:.*)$", shipped.read_text(), re.MULTILINE))
    parsed = parse(told, FILE)
    assert parsed.default_memory_bytes == 4 << 30
    for key in config.schema()["properties"]:
        assert f"{key}:" in told


def test_the_schema_defaults_are_what_holds() -> None:
    plain = Config()
    properties = config.schema()["properties"]
    assert properties["run_dir"]["default"] == str(plain.run_dir)
    assert properties["state_dir"]["default"] == str(plain.state_dir)
    assert properties["libraries"]["default"] == str(plain.libraries)
    assert properties["max_shares"]["default"] == plain.max_shares
    for key, described in properties["timing"]["properties"].items():
        assert described["default"] == getattr(plain.timing, key)


def test_every_key_is_read() -> None:
    text = """
run_dir: /a
state_dir: /b
libraries: /c/lib
read_group: gpu
driver: {cdi: /d.json}
reserve: 512MiB
max_shares: 4
defaults: {memory: 2GiB, cores: 10, policy: burst-share, whole_is_share: true}
trust: {env: ignore}
engines: {docker: {sockets: [/e.sock]}}
mount_namespace: /proc/self/ns/mnt
timing: {bind: 1, sample: 2, reconcile: 3, foreign_half_life: 4, driver: 5}
"""
    assert parse(text, FILE) == Config(
        file=FILE,
        run_dir=Path("/a"),
        state_dir=Path("/b"),
        libraries=Path("/c/lib"),
        read_group="gpu",
        cdi=Path("/d.json"),
        reserve_bytes=512 << 20,
        max_shares=4,
        default_memory_bytes=2 << 30,
        default_cores=10,
        default_policy="burst-share",
        whole_is_share=True,
        trust_env="ignore",
        docker_sockets=(Path("/e.sock"),),
        mount_namespace=Path("/proc/self/ns/mnt"),
        timing=config.Timing(1, 2, 3, 4, 5),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_shares: 0\n", "gpushare.yaml:1: max_shares: 0 is less than the minimum of 1"),
        ("\nmax_share: 3\n", "gpushare.yaml:2: max_share: no such key; the keys here are run_dir"),
        ("defaults:\n  memory: 4G\n", 'gpushare.yaml:2: defaults.memory: "4G" has two readings'),
        ("reserve: 4Q\n", 'gpushare.yaml:1: reserve: "4Q" is not a size; write e.g. 4GiB'),
        ("reserve: 4\n", "write e.g. 512MiB"),
        (
            "run_dir: tmp\n",
            "gpushare.yaml:1: run_dir: 'tmp' does not match '^/'; write an absolute",
        ),
        ("max_shares: 3\nmax_shares: 4\n", "gpushare.yaml:2: max_shares is there twice"),
        ("defaults:\n  policy: fair\n", "write one of fixed-share, burst-share"),
        ("a: [\n", "not YAML"),
        ("- a\n", "not a mapping"),
        ("timing:\n  sample: 0\n", "gpushare.yaml:2: timing.sample: 0 is less than"),
        ("driver: {cdi: /x, cdi: /y}\n", "driver.cdi is there twice"),
        ("engines:\n  docker:\n    sockets:\n    - relative\n", "gpushare.yaml:4: engines.docker"),
        ("x: " + "[" * 5000 + "]" * 5000, "not YAML"),
    ],
)
def test_an_error_names_the_line_the_key_and_the_fix(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, FILE)
    assert message in str(caught.value)


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        config.load(tmp_path / "none.yaml")
