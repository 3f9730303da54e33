# SPDX-License-Identifier: Apache-2.0
"""Hosts with NVIDIA's driver as different packagers leave it, as files in a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.unit.host import elf

DEBIAN = "/usr/lib/x86_64-linux-gnu"
REDHAT = "/usr/lib64"
UUIDS = (
    "GPU-11111111-0000-4000-8000-000000000000",
    "GPU-22222222-0000-4000-8000-000000000000",
)

#: Every server has these; their SONAMEs end in .1, but for what only the driver itself loads.
SERVER = {
    "libcuda": "1",
    "libcudadebugger": "1",
    "libnvidia-ml": "1",
    "libnvidia-ptxjitcompiler": "1",
    "libnvidia-nvvm": "4",
    "libnvidia-opencl": "1",
    "libnvidia-cfg": "1",
    "libnvidia-encode": "1",
    "libnvcuvid": "1",
    "libnvidia-gpucomp": "",
}
DESKTOP = {
    "libnvidia-glcore": "",
    "libnvidia-eglcore": "",
    "libGLX_nvidia": "0",
    "libEGL_nvidia": "0",
    "libnvoptix": "1",
    "libnvidia-ngx": "1",
}


class Host:
    """A folder that is filled as a host is."""

    def __init__(self, root: Path, version: str) -> None:
        self.root = root
        self.version = version

    def write(self, path: str, content: str | bytes = "x") -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)

    def link(self, path: str, target: str) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def library(self, folder: str, name: str, number: str, *, link: bool = True) -> None:
        """Write lib*.so.VERSION, and the link of its SONAME beside it."""
        versioned = f"{name}.so.{self.version}"
        soname = f"{name}.so.{number}" if number else versioned
        self.write(f"{folder}/{versioned}", elf.library(soname))
        if number and link:
            self.link(f"{folder}/{soname}", versioned)

    def libraries(self, folder: str, names: dict[str, str], *, link: bool = True) -> None:
        for name, number in names.items():
            self.library(folder, name, number, link=link)

    def kernel(self, *, caps: int | None = None, minors: tuple[int, ...] = (1, 0)) -> None:
        """Write what the loaded modules show; card 0 has minor 1, as after a hot-plug."""
        majors = "  1 mem\n195 nvidia\n195 nvidiactl\n511 nvidia-uvm\n"
        majors += "" if caps is None else f"{caps} nvidia-caps\n"
        self.write("proc/devices", f"Character devices:\n{majors}\nBlock devices:\n  8 sd\n")
        self.write(
            "proc/driver/nvidia/version",
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {self.version}  Wed Oct 1 2025\n"
            "GCC version:  gcc version 12.2.0\n",
        )
        for place, minor in enumerate(minors):
            address = f"0000:{place + 1:02}:00.0"
            self.write(
                f"proc/driver/nvidia/gpus/{address}/information",
                f"Model: \t\t NVIDIA H200\nGPU UUID: \t {UUIDS[place]}\nDevice Minor: \t {minor}\n",
            )

    def drm(self, card: int, minor: int) -> None:
        """Show the nodes of graphics of a card."""
        for name, number in ((f"card{minor}", minor), (f"renderD{128 + minor}", 128 + minor)):
            folder = f"sys/bus/pci/devices/0000:{card + 1:02}:00.0/drm"
            self.write(f"{folder}/{name}/dev", f"226:{number}\n")

    def instance(self, minor: int, gpu: int, compute: int, capability: int) -> None:
        """Show a MIG instance; the two capabilities are numbered from `capability`."""
        folder = f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{gpu}"
        text = "DeviceFileMinor: {}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
        self.write(f"{folder}/access", text.format(capability))
        self.write(f"{folder}/ci{compute}/access", text.format(capability + 1))


def server(
    root: Path,
    version: str,
    folder: str,
    *,
    libc: str = "",
    smi: str = "/usr/bin/nvidia-smi",
    firmware: str = "/usr/lib/firmware/nvidia",
) -> Host:
    """Return what all servers have, in their places; the C library is beside the driver's."""
    host = Host(root, version)
    host.write(f"{libc or folder}/libc.so.6")
    host.libraries(folder, SERVER)
    host.write(smi)
    if firmware:
        host.write(f"{firmware}/{version}/gsp_ga10x.bin")
    host.kernel()
    return host


def debian(root: Path) -> Host:
    """Debian's nvidia-driver: alternatives, and some libraries in a folder of their own."""
    host = Host(root, "550.163.01")
    host.write(f"{DEBIAN}/libc.so.6")
    current = f"{DEBIAN}/nvidia/current"
    host.libraries(current, SERVER)
    host.libraries(DEBIAN, DESKTOP)
    for name in ("libcuda", "libnvidia-ml"):
        host.link(f"/etc/alternatives/glx--{name}", f"{current}/{name}.so.1")
        host.link(f"{DEBIAN}/{name}.so.1", f"/etc/alternatives/glx--{name}")
    host.write("/usr/lib/nvidia/current/nvidia-smi")
    host.link("/etc/alternatives/nvidia--nvidia-smi", "/usr/lib/nvidia/current/nvidia-smi")
    host.link("/usr/bin/nvidia-smi", "/etc/alternatives/nvidia--nvidia-smi")
    host.write("/etc/OpenCL/vendors/nvidia.icd")
    host.write("/usr/share/glvnd/egl_vendor.d/10_nvidia.json")
    host.write(f"/lib/firmware/nvidia/{host.version}/gsp_ga10x.bin")
    # Not Debian's, and no driver of this machine.
    host.write(f"/usr/lib/i386-linux-gnu/libcuda.so.{host.version}", elf.library_of_32_bit())
    host.kernel()
    host.drm(0, 1)
    return host


def run_installer(root: Path) -> Host:
    """NVIDIA-Linux-x86_64-*.run on a machine with 32-bit libraries, MIG and the daemons."""
    host = Host(root, "580.95.05")
    host.write(f"{DEBIAN}/libc.so.6")
    host.libraries(DEBIAN, SERVER | DESKTOP)
    host.library(f"{DEBIAN}/vdpau", "libvdpau_nvidia", "1")
    host.link(f"{DEBIAN}/gbm/nvidia-drm_gbm.so", f"../libnvidia-allocator.so.{host.version}")
    host.library(DEBIAN, "libnvidia-allocator", "1")
    host.write(f"{DEBIAN}/libnvidia-egl-gbm.so.1.1.2", elf.library("libnvidia-egl-gbm.so.1"))
    host.link(f"{DEBIAN}/libnvidia-egl-gbm.so.1", "libnvidia-egl-gbm.so.1.1.2")
    host.write("/usr/lib32/libcuda.so.1", elf.library_of_32_bit())
    for name in (
        "nvidia-smi",
        "nvidia-debugdump",
        "nvidia-cuda-mps-control",
        "nvidia-persistenced",
    ):
        host.write(f"/usr/bin/{name}")
    for name in ("gsp_tu10x.bin", "gsp_ga10x.bin"):
        host.write(f"/lib/firmware/nvidia/{host.version}/{name}")
    host.write("/run/nvidia-persistenced/socket")
    (root / "tmp/nvidia-mps").mkdir(parents=True)
    host.kernel(caps=237)
    host.instance(1, 1, 0, 21)
    host.instance(1, 2, 0, 30)
    # A toolkit's package on which ldconfig has run.
    host.write("/usr/local/cuda/compat/libcuda.so.590.10.01", elf.library("libcuda.so.1"))
    return host


def ubuntu_server(root: Path) -> Host:
    """Ubuntu's nvidia-headless-*-server with nvidia-utils: no graphics, the socket of a switch."""
    host = server(root, "570.195.03", DEBIAN, firmware="/lib/firmware/nvidia")
    host.write("/usr/bin/nv-fabricmanager")
    host.write("/run/nvidia-fabricmanager/socket")
    return host


def redhat(root: Path) -> Host:
    """RHEL with NVIDIA's own packages: /usr/lib64, and 32-bit libraries in /usr/lib."""
    host = server(root, "580.95.05", REDHAT)
    host.write(f"/usr/lib/libcuda.so.{host.version}", elf.library_of_32_bit())
    host.link("/usr/lib/libcuda.so.1", f"libcuda.so.{host.version}")
    return host


def fedora(root: Path) -> Host:
    """Fedora with RPM Fusion: /lib is a link, the desktop's parts, and Vulkan's files."""
    host = server(root, "580.95.05", REDHAT, firmware="")
    host.link("/lib", "usr/lib")
    host.link("/lib64", "usr/lib64")
    host.libraries(REDHAT, DESKTOP)
    host.write("/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json")
    host.write("/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json")
    host.write(f"/usr/lib/firmware/nvidia/{host.version}/gsp_tu10x.bin")
    host.write("/usr/lib64/xorg/modules/drivers/nvidia_drv.so", elf.library("nvidia_drv.so"))
    host.drm(0, 0)
    return host


def wsl2(root: Path) -> Host:
    """WSL 2: Windows' driver."""
    host = Host(root, "1.1")
    host.write(f"{DEBIAN}/libc.so.6")
    for name in ("libcuda.so.1.1", "libdxcore.so", "libnvidia-ml.so.1", "libnvidia-encode.so.1"):
        host.write(f"/usr/lib/wsl/lib/{name}", elf.library(name.removesuffix(".1.1")))
    for name in ("libcuda.so.1", "libcuda.so"):
        host.link(f"/usr/lib/wsl/lib/{name}", "libcuda.so.1.1")
    host.write("/usr/lib/wsl/lib/nvidia-smi")
    host.write("/usr/lib/wsl/drivers/nv_dispi.inf_amd64_0afe/libcuda.so.1.1", elf.library("l"))
    host.write("/dev/dxg")
    host.write("/proc/misc", " 63 dxg\n126 udmabuf\n")
    return host


def container_optimized(root: Path) -> Host:
    """GKE's Container-Optimized OS: everything in one folder that is mounted into containers."""
    home = "/home/kubernetes/bin/nvidia"
    return server(
        root,
        "535.261.03",
        f"{home}/lib64",
        libc=REDHAT,
        smi=f"{home}/bin/nvidia-smi",
        firmware=f"{home}/firmware/nvidia",
    )


def gpu_operator(root: Path) -> Host:
    """NVIDIA's GPU operator: the driver in a container, its root at /run/nvidia/driver."""
    host = Host(root, "580.95.05")
    host.write(f"{DEBIAN}/libc.so.6")
    driver = "/run/nvidia/driver"
    host.write(f"{driver}{DEBIAN}/libc.so.6")
    # Without the links of the SONAMEs: ldconfig has not run in it.
    host.libraries(f"{driver}{DEBIAN}", SERVER, link=False)
    host.link(f"{driver}/usr/bin/nvidia-smi", "/opt/bin/nvidia-smi")
    host.write(f"{driver}/opt/bin/nvidia-smi")
    host.write(f"{driver}/lib/firmware/nvidia/{host.version}/gsp_ga10x.bin")
    host.write(f"{driver}/run/nvidia-persistenced/socket")
    host.kernel()
    return host


def bottlerocket(root: Path) -> Host:
    """Bottlerocket's NVIDIA variants: folders that only its own containers' runtime names."""
    smi = "/usr/libexec/nvidia/tesla/bin/nvidia-smi"
    return server(root, "535.261.03", "/usr/lib/nvidia/tesla", libc="/usr/lib", smi=smi)


def talos(root: Path) -> Host:
    """Talos with its extensions: glibc and the driver are in a folder of their own."""
    smi = "/usr/local/bin/nvidia-smi"
    host = server(root, "570.195.03", "/usr/local/glibc/usr/lib", smi=smi)
    host.write("/usr/local/bin/nvidia-persistenced")
    return host


def nixos(root: Path) -> Host:
    """NixOS: the driver is a package in the store, and links lead to it."""
    host = Host(root, "580.95.05")
    store, programs = "/nix/store/0a-nvidia-x11-580.95.05", "/nix/store/1b-nvidia-x11-580.95.05-bin"
    host.libraries(f"{store}/lib", SERVER | DESKTOP)
    host.write(f"{programs}/bin/nvidia-smi")
    for name in (*SERVER, *DESKTOP):
        for path in (root / store[1:] / "lib").glob(f"{name}.so.*"):
            host.link(f"/nix/store/2c-graphics-drivers/lib/{path.name}", f"{store}/lib/{path.name}")
    host.link("/run/opengl-driver", "/nix/store/2c-graphics-drivers")
    host.link("/nix/store/3d-system-path/bin/nvidia-smi", f"{programs}/bin/nvidia-smi")
    host.link("/run/current-system/sw", "/nix/store/3d-system-path")
    host.kernel()
    return host


def opt_current(root: Path) -> Host:
    """A driver below /opt/nvidia, of which one is the current one."""
    home = "/opt/nvidia/550.163.01"
    smi = f"{home}/bin/nvidia-smi"
    host = server(root, "550.163.01", f"{home}/lib64", libc=REDHAT, smi=smi, firmware="")
    host.link("/opt/nvidia/current", "550.163.01")
    return host


def debian_of_two(root: Path) -> Host:
    """Debian with 535 and tesla-470, whose module runs, and alternatives that chose 535."""
    host = Host(root, "535.261.03")
    host.write(f"{DEBIAN}/libc.so.6")
    for version, name in (("535.261.03", "current"), ("470.256.02", "tesla-470")):
        host.version = version
        host.libraries(f"{DEBIAN}/nvidia/{name}", SERVER)
        host.write(f"/usr/lib/nvidia/{name}/nvidia-smi", name)
    host.write("/usr/bin/nvidia-cuda-mps-control")
    for name in ("libcuda", "libnvidia-ml"):
        host.link(f"/etc/alternatives/glx--{name}", f"{DEBIAN}/nvidia/current/{name}.so.1")
        host.link(f"{DEBIAN}/{name}.so.1", f"/etc/alternatives/glx--{name}")
    host.link("/etc/alternatives/nvidia--nvidia-smi", "/usr/lib/nvidia/current/nvidia-smi")
    host.link("/usr/bin/nvidia-smi", "/etc/alternatives/nvidia--nvidia-smi")
    host.kernel()
    return host


LAYOUTS: dict[str, Callable[[Path], Host]] = {
    layout.__name__: layout
    for layout in (
        debian,
        run_installer,
        ubuntu_server,
        redhat,
        fedora,
        wsl2,
        container_optimized,
        gpu_operator,
        bottlerocket,
        talos,
        nixos,
        opt_current,
        debian_of_two,
    )
}
