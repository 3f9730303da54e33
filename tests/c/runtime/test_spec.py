# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import json
import random
import re

import pytest

from gpushare.oci import edits, injected_gpu
from gpushare.oci import spec as specs
from gpushare.protocol.kubernetes import ALLOCATION_MOUNT, CLAIM_MOUNT
from gpushare.quota import keys
from gpushare.quota.dialects import DIALECTS
from gpushare.quota.dialects.vendor_key import VendorKey
from tests.compiled import ROOT

from .driver import Driver
from .spec import (
    Spec,
    escaped,
    filled,
    go,
    plain,
    privileged,
    with_annotation,
    with_device,
    with_env,
    with_hook,
    with_mount,
    with_rule,
)

ENVIRONMENT = ROOT / "docs/reference/environment.md"
# What `ctr run --gpus 0` writes (containerd, contrib/nvidia).
CONTAINERD_HOOK = with_hook(
    "/usr/bin/containerd",
    "prestart",
    "oci-hook",
    "--",
    "/usr/bin/nvidia-container-cli",
    "--load-kmods",
    "configure",
    "--device=0",
    "--pid={{pid}}",
    "{{rootfs}}",
)


@pytest.mark.parametrize("key", keys.KEYS.values(), ids=lambda key: key.name)
def test_every_canonical_key_asks(driver: Driver, key: keys.Key) -> None:
    assert driver.spec(go(with_annotation(key.annotation)))["marker"] == "strong"
    assert driver.spec(go(with_env(f"{key.env}=1")))["marker"] == "strong"


#: Keys of other systems that a runtime may see, and what docs/reference calls no request.
ROWS = [row for dialect in DIALECTS.values() for row in dialect.rows if row.is_visible]
NO_QUOTAS = re.findall(r"^\| `(GPUSHARE_\w+)`", ENVIRONMENT.read_text(), re.MULTILINE)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.where} {row.name}")
def test_a_key_of_another_system_asks_if_its_table_says_so(driver: Driver, row: VendorKey) -> None:
    name = filled(row.name)
    spec = with_annotation(name) if row.where == "annotation" else with_env(f"{name}=1")
    assert (driver.spec(go(spec))["marker"] == "strong") == (row.role == "request")


@pytest.mark.parametrize("name", NO_QUOTAS)
def test_a_variable_that_is_no_quota_asks_nothing_and_one_nearly_called_so_does(
    driver: Driver, name: str
) -> None:
    for called, asks in ((name, False), (f"{name}S", True)):
        assert (driver.spec(go(with_env(f"{called}=1")))["marker"] == "strong") == asks
        assert keys.is_quota(called) == asks


def agree_on_placed(driver: Driver, spec: Spec) -> None:
    """Of a container with a GPU already, the launcher says what the daemon does."""
    for told in (spec, privileged(copy.deepcopy(spec))):
        assert driver.spec(go(told))["placed"] == injected_gpu.is_placed(specs.Spec(told))


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (with_annotation("gpushare.io/memory"), 'annotation "gpushare.io/memory"'),
        (with_annotation("gpushare.io/container.main.memory"), None),
        (with_annotation("nvidia.com/container.main.gpu-memory.request"), None),
        (with_annotation("nvidia.com/container.main.gpu-memory.limit"), None),
        (with_annotation("gpu-fraction"), None),
        (with_annotation("kubeshare/gpu_mem"), None),
        (with_env("GPUSHARE_MEMORY=4GiB"), 'environment variable "GPUSHARE_MEMORY"'),
        (with_env("GPUSHARE_MEMROY=4GiB"), None),
        (with_env("GPUSHARE_CORES"), None),
        (with_env("CUDA_DEVICE_MEMORY_LIMIT_0=1g"), None),
        (with_env("NVIDIA_GPU_MEMORY_LIMIT=4096"), None),
        (with_device("/dev/nvidia0"), 'device "/dev/nvidia0"'),
        (with_device("/dev/nvidia-caps/nvidia-cap1", 508), None),
        (with_device("/dev/card"), 'device "/dev/card"'),
        (with_mount("/dev/nvidia0"), 'mount of "/dev/nvidia0"'),
        (with_mount("/x", ALLOCATION_MOUNT), 'mount at "/run/gpushare/allocation"'),
        (with_mount("/x", f"{CLAIM_MOUNT}/0a1b"), 'mount at "/run/gpushare/claim/0a1b"'),
        (with_rule(195), "device rule for major 195"),
        (with_hook("/usr/bin/nvidia-container-runtime-hook"), None),
        (with_hook("/usr/bin/nvidia-cdi-hook", "createContainer"), None),
        (with_hook("nvidia-ctk", "startContainer"), None),
        (CONTAINERD_HOOK, 'hook with "/usr/bin/nvidia-container-cli"'),
    ],
)
def test_a_request_is_strong(driver: Driver, spec: Spec, name: str | None) -> None:
    for text in (go(spec), escaped(spec), json.dumps(spec, indent="\t").encode()):
        read = driver.spec(text)
        assert read["marker"] == "strong"
        assert name is None or read["name"] == name
        assert read["root"] == "rootfs"
        assert read["error"] is None
    agree_on_placed(driver, spec)


@pytest.mark.parametrize(
    "spec",
    [
        plain(),  # which only speaks of us
        with_env("GPUSHARE_DISABLE=1"),
        with_env("GPUSHARE_SOCKET=/run/gpushare/control.sock"),
        with_env("GPUSHARE_SIM_TRACE=1"),
        with_env("GPUSHARE_SERVICE_HOST=10.0.0.1"),
        with_env("GPUSHARE_METRICS_SERVICE_PORT_HTTP=80"),
        with_env("GPUSHARE_PORT=tcp://10.0.0.1:80"),
        with_env("GPUSHARE_METRICS_PORT_80_TCP_ADDR=10.0.0.1"),
        with_env("MY_GPUSHARE_MEMORY=4GiB"),
        with_env("gpushare_memory=4GiB"),
        with_env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30"),
        with_env("CUDA_TASK_PRIORITY=0"),
        with_annotation("nvidia.com/container.main.gpu-compute.mode"),
        with_annotation("nvidia.com/container.main.gpu-memory.request.x"),
        with_annotation("example.com/gpushare.io/memory"),
        with_device("/dev/nvme0", 259),
        with_device("/mnt/dev/nvidia0", 1),
        with_mount("/srv/dev/nvidia0"),
        with_mount("/x", "/run/gpushare"),
        with_mount("/x", CLAIM_MOUNT),
        with_mount("/x", "/srv/run/gpushare/claim"),
        with_mount(ALLOCATION_MOUNT),
        with_rule(195, allow=False),
        with_rule(10),
        with_hook("/opt/nvidia-tools/notify"),
        with_hook("/bin/sh", "prestart", "-c", "nvidia-smi -pm 1"),
    ],
)
def test_lookalikes_are_no_request(driver: Driver, spec: Spec) -> None:
    assert driver.spec(go(spec))["marker"] == "none"
    agree_on_placed(driver, spec)


@pytest.mark.parametrize(
    "key", ["io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"]
)
def test_the_sandbox_of_a_pod_asks_nothing(driver: Driver, key: str) -> None:
    spec = with_annotation("gpushare.io/memory", "4GiB")
    assert driver.spec(go(spec | {"annotations": spec["annotations"] | {key: "container"}}))[
        "marker"
    ] == "strong"  # fmt: skip
    spec["annotations"][key] = "sandbox"
    assert driver.spec(go(spec))["marker"] == "none"


def _rule(**members: object) -> dict[str, object]:
    return {"access": "rwm", **members}


@pytest.mark.parametrize(
    "rules",
    [
        [],
        [_rule(allow=False)],
        [_rule(allow=False), _rule(allow=True)],
        [_rule(allow=True), _rule(allow=False)],
        [_rule(allow=True), _rule(allow=False, type="c", major=1, minor=3)],
        [_rule(allow=True, type="a", major=-1, minor=-1)],
        [_rule(allow=True, type="", major=None)],
        [_rule(allow=True, type="a", major=1)],
        [_rule(allow=True, type="c")],
        [_rule(allow=True, type=None)],
        [_rule(allow=True, major="x")],
        [_rule(allow=True, major=1.5)],
        [_rule(allow="true")],
        [_rule(allow=True), _rule()],
    ],
)
def test_the_launcher_and_the_daemon_agree_on_privileged_containers(
    driver: Driver, rules: list[dict[str, object]]
) -> None:
    spec = with_device("/dev/nvidia0")
    spec["linux"]["resources"]["devices"] = rules
    read = driver.spec(go(spec))
    assert read["error"] is None
    assert read["privileged"] == specs.Spec(spec).is_privileged()
    assert read["marker"] == ("weak" if read["privileged"] else "strong")


def test_a_privileged_container_has_every_node_and_only_its_keys_are_a_request(
    driver: Driver,
) -> None:
    assert driver.spec(go(privileged(with_device("/dev/nvidia0"))))["marker"] == "weak"
    assert driver.spec(go(privileged(plain())))["marker"] == "none"
    asking = privileged(with_annotation("gpushare.io/memory"))
    assert driver.spec(go(asking))["marker"] == "strong"
    assert driver.spec(go(privileged(with_hook("/usr/bin/nvidia-ctk"))))["marker"] == "strong"


def test_the_daemons_record_is_seen_and_an_annotation_is_none(driver: Driver) -> None:
    assert driver.spec(go(dict(edits.seen(specs.Spec(plain())).document)))["edited"]
    assert not driver.spec(go(with_annotation(edits.RECORD)))["edited"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b'{"process":{"env":["GPUSHARE_MEMORY=1GiB"]},"process":{}}', 'key "process"'),
        (b'{"annotations":{"gpushare.io/cores":"1","gpushare.io/cores":"2"}}', None),
        (b'{"annotations":{"gpushare.io/cores":"1","gpushare.\\u0069o/cores":"2"}}', None),
        (b'{"process":{"env":["GPUSHARE_CORES=1"],"env":[]}}', 'key "env"'),
        (b'{"linux":{"devices":[{"path":"/dev/nvidia0","path":"/dev/null"}]}}', 'key "path"'),
        (b'{"hooks":{"prestart":[{"path":"/nvidia-ctk"}],"prestart":[]}}', 'key "prestart"'),
        (b'{"annotations":{"gpushare.io/cores":"1"},"root":{"path":"a","path":"b"}}', 'key "path"'),
    ],
)
def test_a_duplicate_key_hides_no_marker(driver: Driver, text: bytes, name: str | None) -> None:
    read = driver.spec(text)
    assert read["marker"] == "strong"
    assert read["duplicate"] == (name or 'key "gpushare.io/cores"')


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        b'"gpushare"',
        b'{"annotations":null,"process":[],"linux":1,"hooks":"x","root":[]}',
        b'{"process":{"env":{"GPUSHARE_MEMORY":"1"}},"linux":{"devices":{"path":"/dev/nvidia0"}}}',
        b'{"process":{"env":[1,null,["GPUSHARE_MEMORY=1"]]},"hooks":{"prestart":["/nvidia-ctk"]}}',
        b'{"linux":{"devices":[{"path":["/dev/nvidia0"]},"/dev/nvidia0"]}}',
    ],
)
def test_values_of_other_kinds_are_skipped(driver: Driver, text: bytes) -> None:
    assert driver.spec(text)["marker"] == "none"


def test_bytes_that_are_no_utf8_are_written_as_the_replacement_character(driver: Driver) -> None:
    def root(path: bytes) -> str:
        return str(driver.spec(b'{"root":{"path":"' + path + b'"}}')["root"])

    assert root("\u00fc\u20ac\U0001f600".encode()) == "\u00fc\u20ac\U0001f600"
    for bad in (b"\xff", b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"):
        assert set(root(bad)) == {"\ufffd"}


@pytest.mark.parametrize(
    ("behind", "mentioned"),
    [
        ('"process":{"env":["GPUSHARE_MEMORY=1"]}', True),
        ('"process":{"env":["NVIDIA_VISIBLE_DEVICES=1"]}', False),
        # Of a pattern, its fixed beginning.
        ('"annotations":{"nvidia.com/container.main.gpu-memory.limit":"4Gi"}', True),
        ('"annotations":{"nvidia.com/gpu.product":"A10"}', False),
    ],
)
def test_a_marker_behind_an_error_is_mentioned(
    driver: Driver, behind: str, mentioned: bool
) -> None:
    assert driver.spec(f'{{"a":nope,{behind}}}'.encode())["mentioned"] == mentioned


def is_json(text: bytes) -> bool | None:
    """Python's opinion of `text`, without the constants that json.c refuses; None: no UTF-8."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        json.loads(text.decode(), parse_constant=refuse)
    except UnicodeDecodeError:
        return None
    except ValueError:
        return False
    return True


def _mutate(rng: random.Random, text: bytes) -> bytes:
    changed = bytearray(text)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(changed))
        kind = rng.randrange(5)
        if kind == 0:
            changed[at] = rng.choice(b'{}[]",:\\ \0u0n1-x')
        elif kind == 1:
            del changed[at : at + rng.randrange(1, 6)]
        elif kind == 2:
            changed[at:at] = rng.choice([b'"', b"\\", b"\\u00", b"{", b"[", b"]", b",", b"null"])
        elif kind == 3:
            end = at + rng.randrange(40)
            to = rng.randrange(len(changed))
            changed[to:to] = changed[at:end]
        else:
            del changed[at:]
        changed = changed or bytearray(b" ")
    return bytes(changed)


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_spec_is_an_error_where_it_is_one_to_python(driver: Driver, seed: int) -> None:
    rng = random.Random(seed)
    asking = with_env("GPUSHARE_MEMORY=4GiB")
    asking["annotations"]["gpushare.io/cores"] = "30"
    all_devices = privileged(with_device("/dev/nvidia0"))
    for _ in range(100):
        text = _mutate(rng, rng.choice([go, escaped])(rng.choice([plain(), asking, all_devices])))
        error = driver.spec(text)["error"]
        assert is_json(text) in {None, error is None}, text
