# SPDX-License-Identifier: Apache-2.0
"""What engines write for their options for GPUs, as they write it, each with and without a quota.

specs/NAME.json is a config.json, `x-source` says of which engine at which version and by which
command. Recorded ones were copied by a runtime in the place of runc, and shortened: seccomp and the
like are left out, ids and folders made shorter. Composed ones are put together from those after an
engine's source. specs/cdi are the CDI specs that the engines had.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpushare.oci import cdi, driver_files, edits, injected_gpu
from gpushare.oci.driver_files import DriverFiles
from gpushare.oci.edits import Device, Edits
from gpushare.oci.spec import Spec, parse
from gpushare.quota.effective_request import EffectiveRequest, resolve_request
from gpushare.quota.errors import QuotaError
from gpushare.quota.parse import parse_request
from gpushare.quota.request import visible_devices

SPECS = Path(__file__).parent / "specs"
GIB = 1 << 30
UUID = "GPU-6b8313de-f300-5003-b7d6-1e2588d16c0c"
NVIDIAS_MAJORS = {195, 234, 508}
#: Of another vendor, or of none: they never go.
OTHERS = ("/opt/npu/", "libnetwork-setkey")


@dataclass(frozen=True)
class Which:
    """The cards of a request: as many of any (None: all), those named, or those of the nodes."""

    count: int | None = None
    devices: tuple[str, ...] = ()
    minors: tuple[int, ...] = ()


ALL = Which()
ONE = Which(1)
TWO = Which(2)

REQUESTS = {
    "docker-20.10-gpus-all": ALL,
    "docker-20.10-gpus-1": ONE,
    "docker-20.10-gpus-2": TWO,
    "docker-20.10-gpus-uuid": Which(1, (UUID,)),
    "docker-20.10-gpus-capabilities": ALL,
    "docker-20.10-gpus-privileged": ONE,
    "docker-20.10-gpus-mig": Which(1, ("0:1",)),
    "docker-26.1-gpus-2": TWO,
    "docker-26.1-cdi-0": ONE,
    "docker-26.1-cdi-1": Which(1, minors=(1,)),
    "docker-26.1-cdi-all": TWO,
    "docker-26.1-cdi-privileged": ONE,
    "docker-26.1-cdi-beside-another": ONE,
    "docker-28.0-gpus-1-graphics": Which(1, ("1",)),
    "docker-28.3-gpus-1": ONE,
    "docker-29.0-gpus-all": TWO,
    "ctr-1.7-gpus-0": ONE,
    "containerd-2.0-cri-cdi-1": Which(1, minors=(1,)),
    "podman-4.3-cdi-1": Which(1, minors=(1,)),
    "podman-4.3-cdi-all": Which(2, minors=(0, 1)),
    "podman-5.4-cdi-1": Which(1, minors=(1,)),
    "podman-5.4-cdi-all": Which(2, minors=(0, 1)),
    "podman-5.4-gpus-0": Which(1, minors=(0,)),
}
NO_REQUESTS = (
    "docker-20.10-gpus-0",
    "docker-26.1-another",
    "docker-28.0-gpus-0",
    "podman-4.3-hooks-d",
    "podman-5.4-hooks-d",
)
REFUSED = {
    "docker-26.1-cdi-mig": "device /dev/nvidia-caps/nvidia-cap30: a MIG instance that",
    "docker-26.1-cdi-management": "device /dev/nvidia-caps/nvidia-cap1: an NVIDIA component",
    "docker-26.1-cdi-gds": "device /dev/nvidia-fs0: an NVIDIA component",
}


def load(name: str) -> Spec:
    return parse((SPECS / f"{name}.json").read_bytes())


@pytest.fixture(params=["nvidia-ctk's spec", "a spec of ours"])
def host(request: pytest.FixtureRequest) -> DriverFiles:
    """The driver by the engine's CDI spec, and by one that lists much less."""
    document = json.loads((SPECS / "cdi/nvidia.json").read_text())
    if request.param == "a spec of ours":
        common = document["containerEdits"]
        nvml = ("libcuda.so.", "libnvidia-ml.so.")
        files = [m for m in common["mounts"] if any(name in m["hostPath"] for name in nvml)]
        document["containerEdits"] = {"mounts": files, "deviceNodes": common["deviceNodes"][3:]}
        # Which /dev/dri nodes are NVIDIA's, the kernel would say; this machine has none.
        for device in document["devices"]:
            device["containerEdits"].pop("hooks", None)
    return driver_files.from_cdi(cdi.from_document(document))


def taken_out(spec: Spec, host: DriverFiles) -> Spec:
    return edits.apply(spec, Edits(), injected_gpu.find(spec, host).taken)


def given(spec: Spec, host: DriverFiles, *variables: str) -> EffectiveRequest:
    asked = spec.with_value(("process", "env"), [*spec.env, *variables])
    return resolve_request(
        parse_request(asked.annotations, asked.variables, trust="request").valid(),
        visible=visible_devices(asked.variables),
        cards=injected_gpu.find(asked, host).cards,
    )


def test_every_recorded_spec_is_in_one_table() -> None:
    names = {path.stem for path in SPECS.glob("*.json")}
    assert names == {*REQUESTS, *NO_REQUESTS, *REFUSED}
    assert len(names) == len(REQUESTS) + len(NO_REQUESTS) + len(REFUSED)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_alone_is_for_whole_cards(name: str, host: DriverFiles) -> None:
    found, wanted = given(load(name), host), REQUESTS[name]
    assert found.kind == "exclusive"
    assert (found.count, found.devices, found.minors) == (
        wanted.count,
        wanted.devices,
        wanted.minors,
    )


@pytest.mark.parametrize(
    "asked", [("GPUSHARE_MEMORY=4GiB",), ("GPUSHARE_MEMORY=4GiB", "GPUSHARE_CORES=30")]
)
@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_with_a_quota_is_for_shares_of_as_many(
    name: str, asked: tuple[str, ...], host: DriverFiles
) -> None:
    found, wanted = given(load(name), host, *asked), REQUESTS[name]
    assert (found.kind, found.memory_bytes, found.cores) == (
        "shared",
        4 * GIB,
        30 if len(asked) > 1 else 0,
    )
    assert (found.count, found.devices, found.minors) == (
        wanted.count,
        wanted.devices,
        wanted.minors,
    )


@pytest.mark.parametrize("name", NO_REQUESTS)
def test_a_container_without_card_requests_gets_none_and_may_request_a_share(
    name: str, host: DriverFiles
) -> None:
    assert given(load(name), host).kind == "none"
    found = given(load(name), host, "GPUSHARE_MEMORY=4GiB")
    assert (found.kind, found.count) == ("shared", 1)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("asked", [(), ("GPUSHARE_MEMORY=4GiB",)])
def test_cards_that_cannot_be_passed_are_refused_by_name(
    name: str, asked: tuple[str, ...], host: DriverFiles
) -> None:
    with pytest.raises(QuotaError) as refused:
        given(load(name), host, *asked)
    assert str(refused.value).startswith(REFUSED[name])


def leftovers(document: dict[str, Any], *, privileged: bool) -> list[str]:
    """Return whatever of NVIDIA's is in a config.json."""
    linux = document["linux"]
    hooks = [hook for stage in document.get("hooks", {}).values() for hook in stage]
    asked = ("NVIDIA_DRIVER_CAPABILITIES=", "NVIDIA_VISIBLE_DEVICES=all")  # the caller's own
    variables = [entry for entry in document["process"]["env"] if not entry.startswith(asked)]
    parts = [*document["mounts"], *hooks, *variables]
    if not privileged:
        rules = linux["resources"]["devices"]
        numbered = [*linux.get("devices", []), *(rule for rule in rules if rule["allow"])]
        parts += [entry for entry in numbered if entry.get("major") in NVIDIAS_MAJORS]
    words = ("nvidia", "libcuda", "libnv", "nvoptix", "195,", "234,", "508,")
    shown = [json.dumps(part).lower() for part in parts]
    return [text for text in shown if any(word in text for word in words)]


@pytest.mark.parametrize("name", [*REQUESTS, *NO_REQUESTS])
def test_nothing_that_the_engine_put_in_for_it_is_left(name: str, host: DriverFiles) -> None:
    spec = load(name)
    left = dict(taken_out(spec, host).document)
    left.pop(edits.RECORD, None)
    assert leftovers(left, privileged=spec.is_privileged()) == []


@pytest.mark.parametrize("name", [*REQUESTS, *NO_REQUESTS])
def test_edits_of_others_stay_unchanged(name: str, host: DriverFiles) -> None:
    spec = load(name)
    left = dict(taken_out(spec, host).document)
    left.pop(edits.RECORD, None)
    before, after = spec.document, left
    assert list(before) == list(after)
    for text in OTHERS:
        hooks = json.dumps(before.get("hooks", {}))
        assert json.dumps(after.get("hooks", {})).count(text) == hooks.count(text)
        mounts = json.dumps(before["mounts"])
        assert json.dumps(after["mounts"]).count(text) == mounts.count(text)
    paths = [d["path"] for d in before["linux"].get("devices", []) if "npu" in d["path"]]
    assert [d["path"] for d in after["linux"].get("devices", []) if "npu" in d["path"]] == paths
    if "NPU=0" in spec.env:
        assert {"allow": True, "type": "c", "major": 240, "minor": 0, "access": "rwm"} in after[
            "linux"
        ]["resources"]["devices"]


@pytest.mark.parametrize("name", [*REQUESTS, *NO_REQUESTS])
def test_a_second_pass_ends_at_the_same_spec(name: str, host: DriverFiles) -> None:
    spec = load(name)
    ours = Edits(
        env={"NVIDIA_VISIBLE_DEVICES": "void"}, devices=(Device("/dev/nvidia0", "c", 195, 0),)
    )
    once = edits.apply(spec, ours, injected_gpu.find(spec, host).taken)
    assert edits.strip(once).document == spec.document
    again = edits.strip(once)
    assert edits.apply(again, ours, injected_gpu.find(again, host).taken).document == once.document
