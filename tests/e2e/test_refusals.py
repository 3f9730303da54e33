# SPDX-License-Identifier: Apache-2.0
"""Bad input: refused with what, which value and what to do; and nothing is left half-done."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from gpushare.verify import Docker
from gpushare.verify.engine import environment
from tests.stack import Stack
from tests.stack.bundle import Bundle

GIB = 1 << 30


def tenants(stack: Stack) -> list[dict[str, Any]]:
    listed = subprocess.run(
        [*stack.cli, "ps", "--json"], check=True, capture_output=True, env=stack.environment
    )
    found: list[dict[str, Any]] = json.loads(listed.stdout)
    return found


def refusal(bundle: Bundle) -> str:
    """Run `bundle`, which must be refused; return what was said."""
    before = tenants(bundle.stack)
    with bundle.run() as tenant:
        assert tenant.wait() != 0
    assert tenants(bundle.stack) == before, "a refused container holds a reservation"
    assert bundle.call("state").returncode != 0, "a refused container exists"
    return tenant.errors


@pytest.mark.parametrize(
    ("quota", "words"),
    [
        ({"memory": "4Q"}, ["GPUSHARE_MEMORY", '"4Q"', "4GiB"]),
        ({"memory": "4G"}, ["GPUSHARE_MEMORY", '"4G"', "4GiB"]),
        ({"memory": "4"}, ["GPUSHARE_MEMORY", '"4"', "4GiB"]),
        ({"memory": "4GiB", "cores": "0"}, ["GPUSHARE_CORES", '"0"', "1", "100"]),
        ({"memory": "4GiB", "cores": "101"}, ["GPUSHARE_CORES", '"101"', "1", "100"]),
        ({"cores": "30"}, ["GPUSHARE_CORES", "memory"]),
        ({"memory": "4GiB", "core": "30"}, ["GPUSHARE_CORE", "did you mean", "GPUSHARE_CORES"]),
        ({"memory": "4GiB", "devices": "7"}, ["7", "card"]),
        ({"memory": "4GiB", "memory-percent": "10"}, ["GPUSHARE_MEMORY", "GPUSHARE_MEMORY_PERCENT", "keep one"]),
        ({"memory": "1MiB"}, ["1 MiB", "one CUDA context", "ask for more"]),
        ({"memory": "2000GiB"}, ["no card has room for 2000 GiB", "free"]),
    ],
)
def test_a_quota_that_cannot_be_is_refused_by_key_value_and_fix(
    stack: Stack, quota: dict[str, str], words: list[str]
) -> None:
    said = refusal(Bundle(stack, quota=quota))
    for word in words:
        assert word in said


def test_an_annotation_is_named_as_one(stack: Stack) -> None:
    said = refusal(Bundle(stack, annotations={"gpushare.io/memory": "4Q"}))
    assert 'annotation gpushare.io/memory: "4Q" is not a size; write e.g. 4GiB' in said


def duplicated(text: str) -> str:
    return text.replace('"annotations"', '"annotations": {}, "annotations"', 1)


def enormous(text: str) -> str:
    return text.replace('"ociVersion"', f'"padding": "{"x" * (4 << 20)}", "ociVersion"', 1)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [(duplicated, ["annotations", "twice"]), (enormous, ["config.json", "4 MiB"])],
)
def test_a_spoiled_config_is_refused(
    stack: Stack, spoil: Callable[[str], str], words: list[str]
) -> None:
    bundle = Bundle(stack, annotations={"gpushare.io/memory": "4GiB"})
    spoiled = spoil(json.dumps(bundle.config))
    bundle.save(spoiled)
    said = refusal(bundle)
    for word in words:
        assert word in said
    assert (bundle.path / "config.json").read_text() == spoiled


def test_docker_shows_the_refusal_in_its_own_message(docker: Docker) -> None:
    argv = docker.run("refused", {"memory": "4Q"})
    done = subprocess.run(
        argv, check=False, capture_output=True, text=True, env=environment(docker)
    )
    assert done.returncode in (125, 126, 127)
    assert 'GPUSHARE_MEMORY: "4Q" is not a size; write e.g. 4GiB' in done.stderr


def test_without_a_daemon_only_containers_that_ask_for_a_gpu_are_refused() -> None:
    with Stack() as alone:  # its daemon is never started
        plain = Bundle(alone)
        with plain.run() as tenant:
            assert tenant.wait() == 3, tenant.errors  # the probe ran and found no driver
        asking = Bundle(alone, quota={"memory": "4GiB"})
        with asking.run() as tenant:
            assert tenant.wait() != 0
        assert "gpushared" in tenant.errors
        assert asking.call("state").returncode != 0


def test_unknown_fields_of_a_config_survive(stack: Stack) -> None:
    bundle = Bundle(stack, quota={"memory": "4GiB"}, args=(*("/usr/bin/gpushare-probe", "info"),))
    bundle.config["x-vendor"] = {"kept": [1, 2.5, None, "\u00e9"]}
    bundle.config["linux"]["x-vendor"] = "kept too"
    bundle.save()
    with bundle.run() as tenant:
        assert tenant.start()["code"] == 0
        assert tenant.answer("info")["total"] == 4 * GIB
    patched = bundle.read()
    assert patched["x-vendor"] == {"kept": [1, 2.5, None, "\u00e9"]}
    assert patched["linux"]["x-vendor"] == "kept too"


@pytest.mark.parametrize("verbs", [["run"], ["create", "start"]])
def test_both_run_and_create_inject(stack: Stack, verbs: list[str]) -> None:
    bundle = Bundle(stack, quota={"memory": "4GiB"})
    try:
        if verbs == ["run"]:
            with bundle.run() as tenant:
                assert tenant.start()["code"] == 0
        else:
            with subprocess.Popen(
                bundle.argv("create", "--bundle", str(bundle.path), bundle.id),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            ) as created:
                assert created.wait() == 0
            assert bundle.call("start").returncode == 0
        mounts = {mount["destination"] for mount in bundle.read()["mounts"]}
        assert "/opt/gpushare/tenant" in mounts
    finally:
        bundle.remove()
