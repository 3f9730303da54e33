# SPDX-License-Identifier: Apache-2.0
"""Bad input: refused with what, which value and what to do; and nothing is left half-done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare.client import Client
from gpushare.protocol import TenantStatus
from gpushare.verify.runners import TenantRunner, environment, spawn
from tests.leftovers import mounts_under
from tests.stack import Stack
from tests.stack.bundle import Bundle

GIB = 1 << 30


def tenants(stack: Stack) -> list[TenantStatus]:
    return Client(stack.socket).tenants()


def pages(stack: Stack) -> list[str]:
    """Return the mounts for tenants, without those that gpushared makes ahead of need."""
    return [str(one) for one in mounts_under(stack.root) if "/tenants/." not in str(one)]


def refusal(bundle: Bundle) -> str:
    """Run `bundle`, which must be refused; return the one line of the refusal."""
    config = (bundle.path / "config.json").read_bytes()
    files = sorted(bundle.path.rglob("*"))
    before = tenants(bundle.stack), pages(bundle.stack)
    with bundle.run() as tenant:
        assert tenant.wait() != 0
    after = tenants(bundle.stack), pages(bundle.stack)
    assert after == before, "a refused container holds a reservation, or pages"
    assert bundle.call("state").returncode != 0, "a refused container exists"
    assert (bundle.path / "config.json").read_bytes() == config
    assert sorted(bundle.path.rglob("*")) == files, "something is left in the bundle"
    [line] = tenant.errors.splitlines()
    assert line.startswith("gpushare: ")
    assert line.count("gpushare: ") == 1
    return line


@pytest.mark.parametrize(
    ("quota", "words"),
    [
        ({"memory": "4Q"}, ["GPUSHARE_MEMORY=4Q: ", "4GiB"]),
        ({"memory": "4G"}, ["GPUSHARE_MEMORY=4G: ", "4GiB"]),
        ({"memory": "4"}, ["GPUSHARE_MEMORY=4: ", "4GiB"]),
        ({"memory": "4GiB", "cores": "0"}, ["GPUSHARE_CORES=0: ", "1", "100"]),
        ({"memory": "4GiB", "cores": "101"}, ["GPUSHARE_CORES=101: ", "1", "100"]),
        ({"cores": "30"}, ["GPUSHARE_CORES", "memory"]),
        ({"memory": "4GiB", "core": "30"}, ["GPUSHARE_CORE", "Did you mean", "GPUSHARE_CORES"]),
        (
            {"memory": "4GiB", "devices": "7"},
            ["card 7 does not exist", "has card 0", "gpushare ls"],
        ),
        ({"devices": "7"}, ["card 7 does not exist"]),
        ({"count": "2"}, ["2 cards", "1 to choose from"]),
        ({"memory": "4GiB", "memroy": "1"}, ["GPUSHARE_MEMROY", "Did you mean GPUSHARE_MEMORY?"]),
        (
            {"memory": "4GiB", "memory-percent": "10"},
            ["GPUSHARE_MEMORY", "GPUSHARE_MEMORY_PERCENT", "Keep one"],
        ),
        ({"memory": "1MiB"}, ["1 MiB", "a CUDA context", "request more"]),
        ({"memory": "2000GiB"}, ["no card has room for 2000 GiB", "available"]),
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
    assert "annotation gpushare.io/memory=4Q: not a size. Write e.g. 4GiB." in said


def duplicated(text: str) -> str:
    return text.replace('"annotations"', '"annotations": {}, "annotations"', 1)


def duplicated_within(text: str) -> str:
    """Repeat a key that the launcher does not read."""
    return text.replace('"cwd"', '"cwd": "/", "cwd"', 1)


def enormous(text: str) -> str:
    return text.replace('"ociVersion"', f'"padding": "{"x" * (4 << 20)}", "ociVersion"', 1)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (duplicated, ['"annotations"', "twice"]),
        (duplicated_within, ['the key "cwd" is a duplicate', "recreate the bundle"]),
        (enormous, ["config.json", "4 MiB"]),
    ],
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


def shown(engine: TenantRunner, quota: dict[str, str]) -> str:
    """Start a container that must not start; return what the engine's own command says."""
    done = subprocess.run(
        engine.run("refused", quota),
        check=False,
        capture_output=True,
        text=True,
        env=environment(engine),
        stdin=subprocess.DEVNULL,
    )
    engine.remove("refused")
    assert done.returncode not in (0, 3), done.stdout  # 3: the probe ran and found no driver
    return done.stderr


@pytest.fixture(params=["docker", "containerd"])
def engine(request: pytest.FixtureRequest) -> TenantRunner:
    made: TenantRunner = request.getfixturevalue(request.param)
    return made


@pytest.mark.parametrize(
    ("quota", "words"),
    [
        ({"memory": "4Q"}, "GPUSHARE_MEMORY=4Q: not a size. Write e.g. 4GiB."),
        ({"memory": "2000GiB"}, "no card has room for 2000 GiB: card 0 has"),
    ],
)
def test_an_engine_shows_the_refusal_in_its_own_message(
    engine: TenantRunner, quota: dict[str, str], words: str
) -> None:
    assert words in shown(engine, quota).replace('\\"', '"')


def test_without_the_daemon_an_engine_refuses_only_containers_with_a_request(
    engine: TenantRunner, stack: Stack
) -> None:
    assert stack.daemon is not None
    pid = stack.daemon.process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        said = shown(engine, {"memory": "4GiB"})
        with spawn(engine, "plain", {}) as tenant:
            assert tenant.wait() == 3, tenant.errors  # the probe ran and found no driver
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "this container requests a GPU" in said
    assert "gpushared" in said
    assert "gpushare doctor" in said
    assert tenants(stack) == []


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


@pytest.mark.parametrize("stage", ["prestart", "createRuntime", "poststart", "poststop"])
def test_hooks_of_others_are_kept_and_run(stack: Stack, stage: str) -> None:
    bundle = Bundle(stack, quota={"memory": "4GiB"})
    witness = stack.root / f"{bundle.id}-{stage}"
    theirs = {"path": "/bin/sh", "args": ["sh", "-c", f'cat >"{witness}"'], "env": ["PATH=/bin"]}
    bundle.config["hooks"] = {stage: [theirs]}
    bundle.save()
    with bundle.run() as tenant:
        assert tenant.start()["code"] == 0
        assert bundle.read()["hooks"][stage][0] == theirs
    bundle.remove()
    assert json.loads(witness.read_text())["id"] == bundle.id


def test_of_two_creates_of_one_container_at_once_one_gets_it(stack: Stack) -> None:
    bundle = Bundle(stack, quota={"memory": "4GiB"})
    words = bundle.argv("create", "--bundle", str(bundle.path), bundle.id)
    started = [
        subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=stack.environment,
        )
        for _ in range(2)
    ]
    try:
        codes = [process.wait() for process in started]
        assert sorted(codes) == [0, 1]
        own = [tenant for tenant in tenants(stack) if tenant["id"] == bundle.id]
        assert [tenant["state"] for tenant in own] == ["bound"]
        pages = Path(stack.root / "run/tenants" / own[0]["key"] / "pages").stat().st_dev
        shown = Path(f"/proc/{own[0]['pid']}/mountinfo").read_text().splitlines()
        [device] = [line.split()[2] for line in shown if line.split()[4].endswith("/tenant")]
        assert device == f"{os.major(pages)}:{os.minor(pages)}", "it has pages of no tenant"
    finally:
        bundle.remove()
    with bundle.run() as tenant:
        assert tenant.start()["code"] == 0
        assert tenant.ask("info")["total"] == 4 * GIB
    assert [tenant["id"] for tenant in tenants(stack)].count(bundle.id) <= 1
