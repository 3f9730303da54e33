# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.oci import cdi, driver_files
from gpushare.oci.cdi import CdiDeviceNode, CdiError, CdiMount
from gpushare.oci.driver_files import DriverCapabilities
from gpushare.oci.edits import Device
from tests.unit.oci.examples import LIBRARIES, VERSION, cdi_document

NOTHING: frozenset[str] = frozenset()


def fault(document: object) -> str:
    with pytest.raises(CdiError) as caught:
        cdi.from_document(document)
    return str(caught.value)


def changed(**top: Any) -> dict[str, Any]:
    return {**cdi_document(), **top}


def test_json_and_yaml_read_the_same(tmp_path: Path) -> None:
    as_json, as_yaml = tmp_path / "nvidia.json", tmp_path / "nvidia.yaml"
    as_json.write_text(json.dumps(cdi_document()))
    as_yaml.write_text(yaml.safe_dump(cdi_document()))
    read = cdi.load(as_json, yaml.safe_load)
    assert read == cdi.load(as_yaml, yaml.safe_load)
    assert (read.kind, sorted(read.devices)) == ("nvidia.com/gpu", ["0", "1", "GPU-0", "GPU-1"])


def test_a_card_is_found_by_any_of_its_names() -> None:
    spec = cdi.from_document(cdi_document())
    paths = [node.path for node in spec.edits_for([("GPU-7", "1")]).nodes]
    assert paths == [
        "/dev/nvidiactl",
        "/dev/nvidia-modeset",
        "/dev/nvidia-uvm",
        "/dev/nvidia1",
        "/dev/dri/renderD129",
    ]


def test_a_card_that_the_spec_has_not_is_named() -> None:
    with pytest.raises(CdiError) as caught:
        cdi.from_document(cdi_document()).edits_for([("GPU-0",), ("GPU-7", "7")])
    assert str(caught.value) == (
        "nvidia.com/gpu has no device GPU-7 or 7 (it has 0, 1, GPU-0, GPU-1); "
        "make the spec again, e.g. nvidia-ctk cdi generate"
    )


def test_files_of_two_cards_are_listed_once() -> None:
    edits = cdi.from_document(cdi_document()).edits_for([("0",), ("1",)])
    assert len(edits.nodes) == len(set(edits.nodes)) == 7
    assert len(edits.mounts) == len(set(edits.mounts))


def test_hooks_are_reported_and_not_taken() -> None:
    assert cdi.from_document(cdi_document()).edits.not_taken == (
        f"hook createContainer: nvidia-cdi-hook update-ldcache --folder {LIBRARIES}",
    )


def test_numbers_that_the_spec_leaves_out_are_the_hosts() -> None:
    node = CdiDeviceNode("/dev/in-container", "/dev/null")
    assert node.device() == Device("/dev/in-container", "c", 1, 3)


def test_a_node_that_the_host_has_not_is_named() -> None:
    with pytest.raises(CdiError, match=r"^/dev/nvidia99: No such file .*; is the driver loaded\?$"):
        CdiDeviceNode("/dev/nvidia99", "/dev/nvidia99").device()
    with pytest.raises(CdiError, match=r"^/etc/passwd is not a device$"):
        CdiDeviceNode("/dev/x", "/etc/passwd").device()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "the spec is not an object"),
        (changed(cdiVersion="0.2.0"), "cdiVersion '0.2.0' is not one of 0.3 to 1.x"),
        (changed(kind="gpu"), "kind 'gpu' is not VENDOR/CLASS"),
        (changed(devices={}), "devices is not a list"),
        (changed(devices=[{"name": "0"}, {"name": "0"}]), "device '0' is listed twice"),
        (changed(devices=[{}]), "name is missing or not a word"),
        (
            changed(containerEdits={"mounts": [{"hostPath": "../x", "containerPath": "/x"}]}),
            "hostPath '../x' is not an absolute path",
        ),
        (
            changed(containerEdits={"mounts": [{"hostPath": "/a/../x", "containerPath": "/x"}]}),
            "hostPath '/a/../x' is not an absolute path",
        ),
        (
            changed(containerEdits={"deviceNodes": [{"path": "/dev/x", "major": "1"}]}),
            "/dev/x: '1' is not a device number",
        ),
        (
            changed(containerEdits={"deviceNodes": [{"path": "/dev/x", "type": "p"}]}),
            "/dev/x: type 'p' is not a device type",
        ),
        (
            changed(containerEdits={"env": ["A"]}),
            "env of the spec is not a list of NAME=VALUE",
        ),
    ],
)
def test_a_spec_that_cannot_be_used_is_refused(document: object, message: str) -> None:
    assert fault(document) == message


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nvidia.json"
    path.write_text('{"kind": 1, "kind": 2}')
    with pytest.raises(CdiError) as caught:
        cdi.load(path, yaml.safe_load)
    assert str(caught.value) == f'{path}: the key "kind" is a duplicate'


def test_the_driver_is_the_64_bit_libraries() -> None:
    found = driver_files.from_cdi(cdi.from_document(cdi_document()))
    assert found.cuda.host_path == f"{LIBRARIES}/libcuda.so.{VERSION}"
    assert found.nvml.host_path == f"{LIBRARIES}/libnvidia-ml.so.{VERSION}"
    assert found.directories == (LIBRARIES,)


def test_a_spec_without_libcuda_is_no_driver() -> None:
    with pytest.raises(CdiError, match="mounts no libcuda"):
        driver_files.from_cdi(cdi.from_document(changed(containerEdits={})))


def test_a_shared_container_gets_compute_and_utility_alone() -> None:
    spec = cdi.from_document(cdi_document())
    found = driver_files.from_cdi(spec)
    edits = spec.edits_for([("0",)])
    assert [library.stem for library in found.libraries if library.is_compute] == [
        "libnvidia-ptxjitcompiler"
    ]
    assert [mount.container_path for mount in driver_files.shared_files(edits, found, NOTHING)] == [
        "/usr/bin/nvidia-smi"
    ]
    assert [node.path for node in driver_files.shared_nodes(edits, NOTHING)] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia0",
    ]


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


def test_whole_cards_get_everything_that_is_no_library_of_the_main_folder() -> None:
    spec = cdi.from_document(cdi_document())
    found = driver_files.from_cdi(spec)
    others = driver_files.other_files(spec.edits_for([("0",)]), found)
    assert [mount.container_path for mount in others] == [
        "/usr/bin/nvidia-smi",
        "/usr/bin/nvidia-cuda-mps-control",
        f"/usr/lib/i386-linux-gnu/libcuda.so.{VERSION}",
    ]
    assert isinstance(others[0], CdiMount)


@pytest.mark.parametrize("value", ["", " ", ",", None])
def test_without_the_variable_it_is_compute_and_utility(value: str | None) -> None:
    asked = driver_files.requested_capabilities(
        {} if value is None else {driver_files.VARIABLE: value}
    )
    assert asked == DriverCapabilities(frozenset({"compute", "utility"}))


def test_all_is_everything_that_there_is() -> None:
    asked = driver_files.requested_capabilities({driver_files.VARIABLE: "compute,all"})
    assert asked.uninterposed == ("video", "graphics", "display", "ngx", "compat32")


def test_an_unknown_capability_is_reported_separately() -> None:
    asked = driver_files.requested_capabilities({driver_files.VARIABLE: "video, compute,vdieo"})
    assert asked == DriverCapabilities(frozenset({"video", "compute"}), ("vdieo",))


@pytest.mark.parametrize(
    ("path", "capability"),
    [
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05", "compute"),
        ("/etc/OpenCL/vendors/nvidia.icd", "compute"),
        ("/usr/lib64/libnvidia-ml.so.1", "utility"),
        ("/usr/bin/nvidia-smi", "utility"),
        ("/usr/bin/nvidia-cuda-mps-server", "compute"),
        ("/usr/lib64/libnvidia-encode.so.580.95.05", "video"),
        ("/usr/lib64/libnvidia-ngx.so.1", "ngx"),
        ("/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "graphics"),
        ("/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json", "graphics"),
        ("/usr/lib64/xorg/modules/drivers/nvidia_drv.so", "display"),
        ("/usr/lib/i386-linux-gnu/libcuda.so.580.95.05", "compat32"),
        ("/lib/firmware/nvidia/580.95.05/gsp_ga10x.bin", None),
        ("/usr/lib64/libnvidia-of-tomorrow.so.1", None),
    ],
)
def test_a_file_implies_its_capability(path: str, capability: str | None) -> None:
    assert driver_files.of_file(path) == capability
