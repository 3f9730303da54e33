# SPDX-License-Identifier: Apache-2.0
"""The filter libraries as they are shipped, over a driver in a directory of the tests' own."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import pytest

from gpushare import simulator

from .rank import Ranks, ranks
from .tenant import MIB, Tenant

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
BUILD = ROOT / "build" / "tests" / "interposer"
T4 = ROOT / "libhook" / "simulator" / "profiles" / "t4.json"
DOORS_PROGRAM = ("doors_program.c", *(str(HERE / name) for name in ("doors.c", "ways.c")))
LIGHT_CONTEXT_BYTES = 2 * MIB
FAKE_UUIDS = [f"GPU-00000000-0000-0000-0000-00000000000{n}" for n in (1, 2)]


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Several test workers build the same thing."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _program(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is not installed: run ./dev setup")
    return found


def compile_c(output: Path, source: str, *options: str) -> Path:
    """Compile `source` of this folder; `options` may name further files."""
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-g", "-Wall", "-Wextra", "-Werror"]
    include = [f"-I{ROOT / 'libhook' / 'include'}", f"-I{ROOT / 'libhook'}"]
    command = [_program("gcc"), *flags, *include, "-o", str(output), str(HERE / source)]
    subprocess.run([*command, *options, "-ldl"], check=True)
    return output


def build_filters(name: str, *more: str) -> Path:
    """Build both filters for the driver directory build/tests/interposer/NAME/driver.

    `more` are other targets to build.
    """
    folder = BUILD / name
    settings = {
        "CMAKE_MAKE_PROGRAM": _program("ninja"),
        "Python_EXECUTABLE": sys.executable,
        "GPUSHARE_ZIG": "ON" if find_spec("ziglang") else "OFF",
        "GPUSHARE_DRIVER_DIR": folder / "driver",
    }
    options = [f"-D{name}={value}" for name, value in settings.items()]
    configure = [_program("cmake"), "-G", "Ninja", "-S", str(ROOT), "-B", str(folder), *options]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    build = [_program("ninja"), "-C", str(folder), "cuda-filter", "nvml-filter", *more]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    return folder


@dataclass
class Container:
    """What a program in a container has around it, for as long as a test lasts."""

    libraries: Path
    tenant: Tenant
    env: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(self.libraries),
            "GPUSHARE_TENANT_DIR": str(self.tenant.directory),
            **self.env,
        }

    def start(self, *command: str | Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(part) for part in command],
            env=self.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(part) for part in command],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def python(self, *lines: str) -> list[list[object]]:
        """Run `lines` after client.py; return what each say() said."""
        done = self.run(sys.executable, "-c", program(*lines))
        assert done.returncode == 0, done.stderr
        assert not done.stderr, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def says(self, *lines: str) -> list[object]:
        """As python(), of a program that says one thing."""
        (said,) = self.python(*lines)
        return said


def program(*lines: str) -> str:
    return "\n".join([(HERE / "client.py").read_text(), *lines])


@pytest.fixture(scope="session")
def fake_filters() -> Path:
    """A directory with both filters, over the fake drivers of this folder."""
    with _one_at_a_time():
        folder = build_filters("fake")
        (folder / "driver").mkdir(exist_ok=True)
        sources = {
            "libcuda.so.1": (
                "fake_cuda.c",
                str(HERE / "fake_context.c"),
                str(HERE / "fake_memory.c"),
            ),
            "libnvidia-ml.so.1": ("fake_nvml.c",),
        }
        for name, source in sources.items():
            driver = folder / "driver" / name
            options = ("-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-Bsymbolic")
            made = driver.with_suffix(".new")
            compile_c(made, *source, *options, f"-Wl,-soname,{name}").rename(driver)
    return folder / "lib"


@pytest.fixture(scope="session")
def simulator_filters() -> Path:
    """A directory with both filters, over the simulator."""
    with _one_at_a_time():
        folder = build_filters("simulator", "simulator-cuda", "simulator-nvml")
        driver = folder / "driver"
        if not driver.is_symlink():
            driver.symlink_to("lib/simulator")
    return folder / "lib"


FakeContainer = Callable[[list[str], int], Container]


class SimulatedContainer(Protocol):
    """Make a machine with so many cards, and a container with 100 MiB of each of the listed."""

    def __call__(self, cards: int, granted: list[int], profile: Path = ...) -> Container: ...


@pytest.fixture
def fake_container(tmp_path: Path, fake_filters: Path) -> FakeContainer:
    """Make a container that was granted the fake cards of these UUIDs, so much of each."""

    def make(uuids: list[str], memory_bytes: int) -> Container:
        return Container(fake_filters, Tenant(tmp_path / "tenant", uuids, memory_bytes))

    return make


@pytest.fixture
def simulated_container(tmp_path: Path, simulator_filters: Path) -> SimulatedContainer:
    """Make a machine with so many cards, and a container with 100 MiB of each of the listed."""

    def make(cards: int, granted: list[int], profile: Path = T4) -> Container:
        made = simulator.create(
            tmp_path / "cards", profile, cards, folder=simulator_filters / "simulator"
        )
        uuids = [made.uuids[card] for card in granted]
        tenant = Tenant(tmp_path / "tenant", uuids, 100 * MIB)
        return Container(simulator_filters, tenant, dict(made.env))

    return make


@pytest.fixture
def light_profile(tmp_path: Path) -> Path:
    """A card with room for hundreds of contexts."""
    profile = json.loads(T4.read_text())
    assert "context_bytes" in profile
    path = tmp_path / "light.json"
    path.write_text(json.dumps(profile | {"context_bytes": LIGHT_CONTEXT_BYTES}))
    return path


@pytest.fixture
def fake(fake_container: FakeContainer) -> Container:
    """A container with 100 MiB of the first fake card, and the only device that it sees."""
    made = fake_container(FAKE_UUIDS[:1], 100 * MIB)
    made.env["FAKE_CUDA_DEVICES"] = "0"
    return made


@pytest.fixture
def simulated(simulated_container: SimulatedContainer) -> Container:
    """A container with 100 MiB of the machine's only card."""
    return simulated_container(1, [0])


@pytest.fixture(params=["fake", "simulated"])
def container(request: pytest.FixtureRequest) -> Container:
    """A container with 100 MiB of a card, over either driver."""
    made = request.getfixturevalue(request.param)
    assert isinstance(made, Container)
    return made


@pytest.fixture(scope="session")
def doors_program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """doors_program.c, which finds the driver as it is told."""
    return str(compile_c(tmp_path_factory.mktemp("doors") / "doors", *DOORS_PROGRAM))


@pytest.fixture(scope="session")
def linked_doors_program(tmp_path_factory: pytest.TempPathFactory, simulator_filters: Path) -> str:
    """doors_program.c, linked against the driver's library."""
    output = tmp_path_factory.mktemp("doors") / "linked"
    library = str(simulator_filters / "libcuda.so.1")
    return str(compile_c(output, *DOORS_PROGRAM, "-DLINKED", library))


@pytest.fixture
def group(simulated: Container) -> Iterator[Ranks]:
    """Three processes of a container with 100 MiB of the machine's only card."""
    with ranks(simulated, 3) as made:
        yield made
