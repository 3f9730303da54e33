# SPDX-License-Identifier: Apache-2.0
"""CDI, and what engines write for their options for GPUs, each with and without a quota."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpushare.oci import cdi, driver_files, edits, injected_gpu
from gpushare.oci import edits as editing
from gpushare.oci.cdi import CdiError
from gpushare.oci.driver_files import DriverFiles
from gpushare.oci.edits import Edits
from gpushare.oci.spec import Spec, parse
from gpushare.quota.effective_request import EffectiveRequest, resolve_request
from gpushare.quota.errors import QuotaError
from gpushare.quota.parse import parse_request
from gpushare.quota.request import EngineCards, visible_devices
from tests.unit.host import elf
from tests.unit.oci.examples import (
    DENY_ALL,
    NULL_RULE,
    SETKEY,
    cdi_document,
    cdi_form,
    docker_spec,
    hook_form,
    library_mount,
    node,
    rule,
)


def fault(document: object) -> str:
    with pytest.raises(CdiError) as caught:
        cdi.from_document(document)
    return str(caught.value)


def changed(**top: Any) -> dict[str, Any]:
    return {**cdi_document(), **top}


def edited(kind: str, part: object) -> dict[str, Any]:
    return changed(containerEdits={kind: [part]})


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "the spec is not an object"),
        (changed(cdiVersion="0.2.0"), "cdiVersion '0.2.0' is not one of 0.3 to 1.x"),
        (changed(kind="gpu"), "kind 'gpu' is not VENDOR/CLASS"),
        (changed(devices={}), "devices is not a list"),
        (changed(devices=[{"name": "0"}, {"name": "0"}]), "device '0' is listed twice"),
        (changed(devices=[{}]), "name is missing or not a word"),
        *(
            (
                edited("mounts", {"hostPath": path, "containerPath": "/x"}),
                f"hostPath {path!r} is not an absolute path",
            )
            for path in ("../x", "/a/../x")
        ),
        (
            edited("deviceNodes", {"path": "/dev/x", "major": "1"}),
            "/dev/x: '1' is not a device number",
        ),
        (
            edited("deviceNodes", {"path": "/dev/x", "type": "p"}),
            "/dev/x: type 'p' is not a device type",
        ),
        (edited("env", "A"), "env of the spec is not a list of NAME=VALUE"),
    ],
)
def test_a_spec_that_cannot_be_used_is_refused(document: object, message: str) -> None:
    assert fault(document) == message


def test_a_device_that_cannot_be_passed_is_named(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "no", "is the driver loaded"), (tmp_path, "is not a device")):
        with pytest.raises(CdiError, match=f"{path}.*{why}"):
            cdi.CdiDeviceNode("/dev/x", str(path)).device()
    found = cdi.from_document(cdi_document())
    with pytest.raises(CdiError, match=r"no device GPU-7 or 7 \(it has 0, 1, GPU-0, GPU-1\)"):
        found.edits_for([("GPU-7", "7")])
    # On WSL 2 there is one node for all cards.
    wsl = changed(devices=[{"name": "all", "containerEdits": {"env": ["A=1"]}}])
    assert "A=1" in cdi.from_document(wsl).edits_for([("GPU-7", "7")]).env


def test_a_cuda_compat_that_is_not_what_it_is_called_is_refused(
    tmp_path: Path, nvidia_driver: DriverFiles
) -> None:
    for content, why in (
        (elf.library("libother.so.1"), "has no libcuda.so.1"),
        (b"text", "is not a 64-bit little-endian ELF file"),
        (elf.program(None), "is not a library that can be looked for"),
        (elf.library("x").replace(b"\1\0\0\0\4", bytes(5), 1), "string table lies in no segment"),
    ):
        (tmp_path / "libcuda.so.590.10.01").write_bytes(content)
        with pytest.raises(CdiError, match=why):
            driver_files.with_compat(nvidia_driver, tmp_path)


def test_a_spec_without_libcuda_is_no_driver() -> None:
    with pytest.raises(CdiError, match="mounts no libcuda"):
        driver_files.from_cdi(cdi.from_document(changed(containerEdits={})))


@pytest.mark.parametrize(
    ("name", "compute"),
    [
        ("libnvidia-ptxjitcompiler.so.580.1", True),
        ("libnvidia-nvvm70.so.4", True),
        ("libnvidia-pkcs11-openssl3.so.580.1", True),
        ("libnvidia-opencl.so.580.1", False),
        ("libnvidia-encode.so.580.1", False),
        ("libnvidia-glvkspirv.so.580.1", False),
        ("libcuda.so.580.1", False),
    ],
)
def test_libraries_that_bypass_libcuda_are_no_part_of_a_share(name: str, compute: bool) -> None:
    assert driver_files.Library(f"/x/{name}", f"/x/{name}", name).is_compute == compute


HOOK = "docker run --gpus"
NODES = "the CDI device or --device"


def cleaned(document: dict[str, Any], driver: DriverFiles) -> Any:
    spec = Spec(document)
    return editing.apply(spec, Edits(), injected_gpu.find(spec, driver).taken).document


def asked(document: dict[str, Any], driver: DriverFiles) -> EngineCards | None:
    return injected_gpu.find(Spec(document), driver).cards


def refusal(document: dict[str, Any], driver: DriverFiles) -> str:
    with pytest.raises(QuotaError) as caught:
        injected_gpu.find(Spec(document), driver)
    return str(caught.value)


@pytest.mark.parametrize(
    ("visible", "cards"),
    [
        ("0,1", EngineCards(HOOK, count=2)),
        ("1", EngineCards(HOOK, devices=("1",))),
        ("nvidia.com/gpu=1", EngineCards(HOOK, devices=("1",))),
        ("void", None),
    ],
)
def test_the_hook_form_asks_with_the_last_visible_devices(
    nvidia_driver: DriverFiles, visible: str, cards: EngineCards | None
) -> None:
    assert asked(hook_form(visible), nvidia_driver) == cards
    assert cleaned(hook_form(visible), nvidia_driver)["hooks"] == {"prestart": [SETKEY]}


def test_a_mig_instance_is_asked_for_with_its_capabilities() -> None:
    """As engines pass a CDI device."""
    caps = [node(f"/dev/nvidia-caps/nvidia-cap{number}", number, 508) for number in (12, 13)]
    host = cdi_document()
    edits = {"deviceNodes": [{"path": "/dev/nvidia0"}, *({"path": one["path"]} for one in caps)]}
    host["devices"] += [{"name": name, "containerEdits": edits} for name in ("0:0", "MIG-1")]
    made = driver_files.from_cdi(cdi.from_document(host))
    document = cdi_form(0)
    document["linux"]["devices"] += caps
    assert asked(document, made) == EngineCards(NODES, devices=("0:0",))
    document["linux"]["devices"].append(node("/dev/nvidia1", 1))
    assert refusal(document, made).startswith(f"{NODES}: passes MIG instances, and beside them")


def test_a_node_of_a_card_that_our_own_spec_does_not_list_is_taken_out(
    nvidia_driver: DriverFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors = {"card7": "0x10de", "renderD140": "0x1002"}
    for name, vendor in vendors.items():
        folder = tmp_path / name / "device"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
    monkeypatch.setattr(injected_gpu, "DRM", tmp_path)
    document = cdi_form(0)
    theirs = node("/dev/dri/renderD140", 140, 226)
    document["linux"]["devices"] += [node("/dev/dri/card7", 7, 226), theirs]
    assert cleaned(document, nvidia_driver)["linux"]["devices"] == [theirs]


def test_a_node_that_is_a_mount_is_a_request_too(nvidia_driver: DriverFiles) -> None:
    document = docker_spec()
    mount = {**library_mount("x"), "source": "/dev/nvidia1", "destination": "/dev/nvidia1"}
    document["mounts"].append(mount)
    assert asked(document, nvidia_driver) == EngineCards(NODES, minors=(1,))
    assert cleaned(document, nvidia_driver)["mounts"] == docker_spec()["mounts"]


@pytest.mark.parametrize("wide", [rule(None), {**rule(None), "minor": -1}, rule(7)])
def test_a_rule_for_cards_never_stays_even_without_a_node(
    nvidia_driver: DriverFiles, wide: dict[str, Any]
) -> None:
    document = docker_spec()
    document["linux"]["resources"]["devices"].append(wide)
    assert asked(document, nvidia_driver) is None
    left = cleaned(document, nvidia_driver)
    assert left["linux"]["resources"]["devices"] == [DENY_ALL, NULL_RULE]


NODE, MOUNT = ("linux", "devices"), ("mounts",)
FOLDER, PLUGIN = "/dev/nvidia-caps", "/usr/lib/nvidia-future/plugin"
#: What is put where, and what it is called in the refusal.
UNKNOWN: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
    (NODE, node("/dev/nvidia-caps/nvidia-cap1", 1, 510), "device /dev/nvidia-caps/nvidia-cap1"),
    (NODE, node("/dev/nvidia-new", 0, 511), "device /dev/nvidia-new"),
    (NODE, node("/dev/harmless", 0), "device /dev/harmless"),
    (MOUNT, library_mount("x") | {"source": FOLDER}, f"mount of {FOLDER}"),
    (MOUNT, library_mount("x") | {"source": PLUGIN, "destination": PLUGIN}, f"mount {PLUGIN}"),
    (("hooks", "startContainer"), {"path": "/opt/nvidia-hook"}, "hook /opt/nvidia-hook"),
    (
        ("hooks", "prestart"),
        {"path": "/usr/bin/containerd", "args": ["containerd", "--", "/opt/nvidia-container-new"]},
        "hook /usr/bin/containerd with /opt/nvidia-container-new",
    ),
]


@pytest.mark.parametrize(("where", "part", "called"), UNKNOWN)
def test_an_unknown_part_of_nvidias_is_refused(
    nvidia_driver: DriverFiles, where: tuple[str, ...], part: dict[str, Any], called: str
) -> None:
    spec = Spec(cdi_form(0))
    document = spec.with_value(where, [*spec.entries(*where), part]).document
    assert refusal(dict(document), nvidia_driver) == (
        f"{called}: an NVIDIA component that gpushare does not recognize. "
        "Remove it, or use the runc runtime."
    )


def test_a_control_node_without_a_card_is_refused(nvidia_driver: DriverFiles) -> None:
    document = docker_spec()
    document["linux"]["devices"] = [node("/dev/nvidiactl", 255)]
    assert refusal(document, nvidia_driver) == (
        "the CDI device or --device: parts of the NVIDIA driver are passed without a card. "
        "Pass a card, or request a share: -e GPUSHARE_MEMORY=4GiB alone."
    )


def test_a_privileged_monitor_that_mounts_the_driver_asks_for_no_card(
    nvidia_driver: DriverFiles,
) -> None:
    document = docker_spec()
    document["linux"]["devices"] = [node("/dev/nvidia0", 0), node("/dev/nvidiactl", 255)]
    document["linux"]["resources"]["devices"] = [DENY_ALL, {"allow": True, "access": "rwm"}]
    document["mounts"].append(library_mount("libnvidia-ml.so.1"))
    assert injected_gpu.find(Spec(document), nvidia_driver) == injected_gpu.InjectedGpu()
    assert cleaned(document, nvidia_driver) == document


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


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((), ("exclusive", None, 100)),
        (("GPUSHARE_MEMORY=4GiB",), ("shared", 4 * GIB, 0)),
        (("GPUSHARE_MEMORY=4GiB", "GPUSHARE_CORES=30"), ("shared", 4 * GIB, 30)),
    ],
)
@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_alone_is_for_whole_cards_and_with_a_quota_for_shares_of_as_many(
    name: str, asked: tuple[str, ...], expected: tuple[str, int | None, int], host: DriverFiles
) -> None:
    found = given(load(name), host, *asked)
    assert (found.kind, found.memory_bytes, found.cores) == expected
    assert Which(found.count, found.devices, found.minors) == REQUESTS[name]


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
