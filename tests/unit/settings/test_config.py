# SPDX-License-Identifier: Apache-2.0
"""gpushare.yaml: what it may say, and that an error names line, key, value and fix."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare import config, settings
from gpushare.config import Config, parse
from gpushare.quota.effective_request import Defaults
from gpushare.quota.request_policy import MaxPerCard, MaxPerRequest, RequestPolicy
from gpushare.settings import ConfigError

DEFAULTS = Defaults(2 << 30, 10, "burst-share", True)
CEILINGS = MaxPerRequest(
    memory_bytes=8 << 30,
    memory_percent=50,
    memory_limit_bytes=16 << 30,
    cores=40,
    count=2,
    weight=7,
    priority=1,
    policies=("burst-share", "best-effort"),
    classes=("offline",),
    backends=("interposer",),
    allow_exclusive=False,
)
FILE = Path("/etc/gpushare/gpushare.yaml")


def test_an_empty_file_is_the_defaults() -> None:
    assert parse("# nothing\n", FILE) == Config(file=FILE)


def test_the_shipped_file_is_the_defaults() -> None:
    shipped = Path(__file__).parents[3] / "configs" / "gpushare.yaml"
    assert parse(shipped.read_text(), FILE) == Config(file=FILE)


def test_the_shipped_file_shows_every_key_with_a_value_that_is_accepted() -> None:
    shipped = Path(__file__).parents[3] / "configs" / "gpushare.yaml"
    told = "\n".join(
        re.findall(r'^# ( *(?:[a-z_-]+|"[^"]+"):.*)$', shipped.read_text(), re.MULTILINE)
    )
    parsed = parse(told, FILE)
    assert parsed.terms.defaults.memory_bytes == 4 << 30
    assert parsed.terms_of("team-a").max_per_request.memory_bytes == 80 << 30
    assert parsed.terms_of("dev-x").trust == "ignore"
    whole = settings.load_schema()
    parts = (
        "defaults",
        "max_per_request",
        "max_per_card",
        "max_per_node",
        "card",
        "dialects",
        "profile",
    )
    for part in (whole, *(whole["$defs"][name] for name in (*parts, "profile"))):
        for key in part["properties"]:
            assert re.search(rf"\b{key}:", told), key


def test_the_schemas_defaults_are_in_effect() -> None:
    plain = Config()
    properties = settings.load_schema()["properties"]
    assert properties["run_dir"]["default"] == str(plain.run_dir)
    assert properties["state_dir"]["default"] == str(plain.state_dir)
    assert properties["library_dir"]["default"] == str(plain.libraries)
    assert properties["max_tenants"]["default"] == plain.max_tenants
    assert properties["users"]["properties"]["max_per_card"]["default"] == {
        "memory_percent": plain.users.max_per_card.memory_percent,
        "cores": plain.users.max_per_card.cores,
        "tenants": plain.users.max_per_card.tenants,
    }
    assert properties["users"]["properties"]["max_per_request"]["default"] == {
        "priority": plain.users.max_per_request.priority,
        "classes": [*(plain.users.max_per_request.classes or ())],
    }
    for key, described in properties["timing"]["properties"].items():
        assert described["default"] == getattr(plain.timing, key)


def test_every_key_is_read() -> None:
    text = """
run_dir: /a
state_dir: /b
library_dir: /c/lib
read_group: gpu
driver: {cdi_spec: /d.json}
system_reserved: 512MiB
max_tenants: 4
defaults: {memory: 2GiB, cores: 10, policy: burst-share, mode: shared}
trust: {env: ignore}
allow_bypass_capabilities: true
max_per_request:
  memory: 8GiB
  memory_percent: 50
  memory_limit: 16GiB
  cores: 40
  count: 2
  weight: 7
  priority: 1
  policies: [burst-share, best-effort]
  classes: [offline]
  backends: [interposer]
  allow_exclusive: false
users:
  defaults: {memory: 1GiB}
  max_per_request: {count: 1}
  max_per_card: {memory: 4GiB, memory_percent: 20, cores: 30, tenants: 3}
namespaces:
  team:
    max_per_request: {memory: 4GiB}
    max_per_card: {tenants: 5}
    trust: {env: request}
    defaults: {cores: 20}
kubernetes: {mode: dra, node: gpu-7, cdi_dir: /f}
engines: {sockets: [/e.sock]}
runtime_mount_namespace: /proc/self/ns/mnt
timing:
  bind_timeout_seconds: 1
  sample_interval_seconds: 2
  reconcile_interval_seconds: 3
  non_tenant_half_life_seconds: 4
  driver_timeout_seconds: 5
  shortfall_kill_seconds: 6
"""
    assert parse(text, FILE) == Config(
        file=FILE,
        run_dir=Path("/a"),
        state_dir=Path("/b"),
        libraries=Path("/c/lib"),
        read_group="gpu",
        cdi=Path("/d.json"),
        reserve_bytes=512 << 20,
        max_tenants=4,
        terms=RequestPolicy(DEFAULTS, CEILINGS, trust="ignore"),
        users=RequestPolicy(
            replace(DEFAULTS, memory_bytes=1 << 30),
            replace(CEILINGS, count=1),
            MaxPerCard(4 << 30, 20, 30, 3),
            trust="ignore",
        ),
        namespaces=(
            (
                "team",
                RequestPolicy(
                    replace(DEFAULTS, cores=20),
                    replace(CEILINGS, memory_bytes=4 << 30, memory_limit_bytes=None),
                    MaxPerCard(tenants=5),
                    trust="request",
                ),
            ),
        ),
        allow_uninterposed=True,
        kubernetes_mode="dra",
        node_name="gpu-7",
        cdi_dir=Path("/f"),
        docker_sockets=(Path("/e.sock"),),
        mount_namespace=Path("/proc/self/ns/mnt"),
        timing=config.Timing(1, 2, 3, 4, 5, 6),
    )


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        config.load(tmp_path / "none.yaml")


def test_a_file_changed_after_it_was_read_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gpushare.yaml"
    monkeypatch.setattr(config, "DEFAULT_FILE", file)
    without = config.load()
    assert not config.outdated(without)
    file.write_text("max_tenants: 4\n")
    os.utime(file, ns=(1, 1))
    assert config.outdated(without)
    said = config.load()
    assert not config.outdated(said)
    os.utime(file, ns=(2, 2))
    assert config.outdated(said)
    file.unlink()
    assert config.outdated(said)
    assert not config.outdated(Config())
