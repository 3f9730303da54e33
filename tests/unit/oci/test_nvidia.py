# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pytest

from gpushare.oci import cdi, driver_files, injected_gpu
from gpushare.oci import edits as editing
from gpushare.oci.driver_files import DriverFiles
from gpushare.oci.edits import Edits
from gpushare.oci.spec import Spec
from gpushare.quota.errors import QuotaError
from gpushare.quota.request import EngineCards
from tests.unit.oci.examples import (
    DENY_ALL,
    NULL_RULE,
    SETKEY,
    cdi_document,
    cdi_form,
    containerd_form,
    docker_spec,
    hook_form,
    library_mount,
    node,
    rule,
)

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
        ("0", EngineCards(HOOK, count=1)),
        ("0,1", EngineCards(HOOK, count=2)),
        ("1", EngineCards(HOOK, devices=("1",))),
        ("1,0", EngineCards(HOOK, devices=("1", "0"))),
        ("GPU-4f1c", EngineCards(HOOK, devices=("GPU-4f1c",))),
        ("all", EngineCards(HOOK, all_cards=True)),
        ("nvidia.com/gpu=1", EngineCards(HOOK, devices=("1",))),
        ("none", None),
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


def test_an_instance_that_is_named_as_before_driver_470_is_refused(
    nvidia_driver: DriverFiles,
) -> None:
    assert refusal(hook_form("MIG-GPU-4f1c/1/0"), nvidia_driver) == (
        "docker run --gpus=MIG-GPU-4f1c/1/0: a MIG instance that the driver's CDI spec does not "
        "list. Name it as gpushare ls does (MIG-4f1c... or 0:1), or generate the CDI spec again."
    )


def test_a_kubelet_means_the_very_card_that_it_passed(nvidia_driver: DriverFiles) -> None:
    document = cdi_form(0)
    document["annotations"]["io.kubernetes.cri.container-name"] = "train"
    assert asked(document, nvidia_driver) == EngineCards(NODES, minors=(0,))


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


def test_another_vendors_render_node_stays(nvidia_driver: DriverFiles) -> None:
    document = cdi_form(0)
    theirs = node("/dev/dri/renderD140", 140, 226)
    document["linux"]["devices"].append(theirs)
    document["linux"]["resources"]["devices"].append(rule(140, 226))
    left = cleaned(document, nvidia_driver)
    assert left["linux"]["devices"] == [theirs]
    assert left["linux"]["resources"]["devices"] == [DENY_ALL, NULL_RULE, rule(140, 226)]


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


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (node("/dev/nvidia-caps/nvidia-cap1", 1, 510), "device /dev/nvidia-caps/nvidia-cap1"),
        (node("/dev/nvidia-fs0", 0, 507), "device /dev/nvidia-fs0"),
        (node("/dev/nvidia-new", 0, 511), "device /dev/nvidia-new"),
        (node("/dev/harmless", 0), "device /dev/harmless"),
    ],
)
def test_an_unknown_node_of_nvidias_is_refused(
    nvidia_driver: DriverFiles, device: dict[str, Any], message: str
) -> None:
    document = docker_spec()
    document["linux"]["devices"] = [device]
    assert refusal(document, nvidia_driver) == (
        f"{message}: an NVIDIA component that gpushare does not recognize. "
        "Remove it, or use the runc runtime."
    )


def test_a_folder_of_nodes_is_refused(nvidia_driver: DriverFiles) -> None:
    document = docker_spec()
    mount = {**library_mount("x"), "source": "/dev/nvidia-caps", "destination": "/dev/nvidia-caps"}
    document["mounts"].append(mount)
    assert refusal(document, nvidia_driver).startswith(
        "mount of /dev/nvidia-caps: an NVIDIA component"
    )


@pytest.mark.parametrize(
    "path",
    [
        "/run/nvidia-persistenced/socket",
        "/usr/bin/nvidia-imex-ctl",
        "/etc/vulkan/icd.d/nvidia_icd.x86_64.json",
        "/lib/firmware/nvidia/580.159.04/gsp_tu10x.bin",
        "/usr/lib/x86_64-linux-gnu/nvidia/xorg/libglxserver_nvidia.so.580.159.04",
        "/usr/lib/x86_64-linux-gnu/libcudadebugger.so.580.159.04",
    ],
)
def test_the_files_that_come_with_a_card_are_known(nvidia_driver: DriverFiles, path: str) -> None:
    document = cdi_form(0)
    document["mounts"].append({**library_mount("x"), "source": path, "destination": path})
    assert cleaned(document, nvidia_driver)["mounts"] == docker_spec()["mounts"]


def test_an_unknown_file_that_came_with_a_card_is_refused(nvidia_driver: DriverFiles) -> None:
    document = cdi_form(0)
    path = "/usr/lib/x86_64-linux-gnu/nvidia-future/plugin"
    document["mounts"].append({**library_mount("x"), "source": path, "destination": path})
    assert refusal(document, nvidia_driver).startswith(f"mount {path}: an NVIDIA component")


def test_models_of_nvidias_are_the_users_own(nvidia_driver: DriverFiles) -> None:
    document = cdi_form(0)
    models = {**library_mount("x"), "source": "/srv/nvidia", "destination": "/srv/nvidia"}
    document["mounts"].append(models)
    assert cleaned(document, nvidia_driver)["mounts"] == [*docker_spec()["mounts"], models]


def test_an_unknown_hook_of_nvidias_is_refused(nvidia_driver: DriverFiles) -> None:
    document = docker_spec()
    document["hooks"]["startContainer"] = [{"path": "/opt/nvidia-future-hook"}]
    assert refusal(document, nvidia_driver).startswith(
        "hook /opt/nvidia-future-hook: an NVIDIA component"
    )


@pytest.mark.parametrize(
    ("device", "cards"),
    [
        ("--device=0", EngineCards("--gpus", count=1)),
        ("--device=1,2", EngineCards("--gpus", devices=("1", "2"))),
        ("--device=all", EngineCards("--gpus", all_cards=True)),
        ("--compute", None),
    ],
)
def test_the_hook_of_ctr_and_nerdctl_asks_with_its_argument(
    nvidia_driver: DriverFiles, device: str, cards: EngineCards | None
) -> None:
    document = containerd_form(device)
    assert asked(document, nvidia_driver) == cards
    assert cleaned(document, nvidia_driver)["hooks"] == {"prestart": [SETKEY]}


def test_another_program_that_starts_one_of_nvidias_is_refused(nvidia_driver: DriverFiles) -> None:
    document = containerd_form("--device=0")
    document["hooks"]["prestart"][-1]["args"][3] = "/opt/nvidia-container-future"
    assert refusal(document, nvidia_driver).startswith(
        "hook /usr/bin/containerd with /opt/nvidia-container-future: an NVIDIA component"
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


def test_driver_files_without_a_card_are_somebodys_own_business(nvidia_driver: DriverFiles) -> None:
    document = docker_spec()
    document["mounts"].append(library_mount("libcuda.so.1"))
    assert cleaned(document, nvidia_driver) == document
