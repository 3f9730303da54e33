# SPDX-License-Identifier: Apache-2.0
"""The filter libraries as they are shipped, over a driver in a directory of the tests' own."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import pytest

from gpushare import abi, simulator
from gpushare.simulator import device_file
from tests import compiled

from .container import ProgramContainer
from .rank import Ranks, ranks
from .tenant import MIB, InterposedTenant

HERE = Path(__file__).parent
ROOT = compiled.ROOT
T4 = ROOT / "simulator" / "profiles" / "t4.json"
LIGHT_CONTEXT_BYTES = 2 * MIB
FAKE_UUIDS = [f"GPU-00000000-0000-0000-0000-00000000000{n}" for n in (1, 2)]


def compile_c(output: Path, source: str, *options: str) -> Path:
    """Compile `source` of this folder; `options` may name further files."""
    include = (f"-I{ROOT}/libhook", f"-I{ROOT}")
    return compiled.compile_c(output, *compiled.STRICT, *include, HERE / source, *options)


@contextmanager
def filters_over(driver: Path, place: str = abi.HOST_DIR) -> Iterator[Path]:
    """Make a directory with both filters, as they are installed but for where the driver is.

    They are those of the host, which find a tenant's pages by a variable, or those of containers.
    """
    filters = device_file.libraries().parent / ("host" if place == abi.HOST_DIR else "")
    folder_of_driver = f"{place}/driver"
    with TemporaryDirectory(prefix="gpushare-filters-") as name:
        folder = Path(name, "lib")
        folder.mkdir()
        (folder / "simulator").symlink_to(device_file.libraries())
        Path(name, "driver").symlink_to(driver)
        # As long as the path that it replaces, in the code and in what the loader is told.
        link = Path(f"/tmp/gpushare-{secrets.token_hex(8)}"[: len(folder_of_driver)])
        for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
            shipped = (filters / library).read_bytes()
            assert folder_of_driver.encode() in shipped
            built = shipped.replace(folder_of_driver.encode(), str(link).encode())
            (folder / library).write_bytes(built)
        link.symlink_to(driver)
        try:
            yield folder
        finally:
            link.unlink()


@pytest.fixture(scope="session")
def fake_filters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with both filters, over the fake drivers of this folder."""
    sources = {
        "libcuda.so.1": (
            "fake_cuda.c",
            str(HERE / "fake_context.c"),
            str(HERE / "fake_memory.c"),
        ),
        # NVIDIA's has DT_HASH and no DT_GNU_HASH, and so has libcuda of 470.
        "libnvidia-ml.so.1": ("fake_nvml.c", "-Wl,--hash-style=sysv"),
    }
    driver = tmp_path_factory.mktemp("fake")
    for name, source in sources.items():
        options = ("-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-Bsymbolic")
        compile_c(driver / name, *source, *options, f"-Wl,-soname,{name}")
    with filters_over(driver) as folder:
        yield folder


@pytest.fixture(scope="session")
def simulator_filters() -> Iterator[Path]:
    """A directory with both filters, over the simulator."""
    with filters_over(device_file.libraries()) as folder:
        yield folder


FakeContainer = Callable[[list[str], int], ProgramContainer]


class SimulatedContainer(Protocol):
    """Make a machine with so many cards, and a container with 100 MiB of each of the listed."""

    def __call__(
        self, cards: int, granted: list[int], profile: Path = ..., cuda_version: str | None = ...
    ) -> ProgramContainer: ...


@pytest.fixture
def fake_container(tmp_path: Path, fake_filters: Path) -> FakeContainer:
    """Make a container that was granted the fake cards of these UUIDs, so much of each."""

    def make(uuids: list[str], memory_bytes: int) -> ProgramContainer:
        return ProgramContainer(
            fake_filters, InterposedTenant(tmp_path / "tenant", uuids, memory_bytes)
        )

    return make


@pytest.fixture
def simulated_container(tmp_path: Path, simulator_filters: Path) -> SimulatedContainer:
    """Make a machine with so many cards, and a container with 100 MiB of each of the listed."""

    def make(
        cards: int, granted: list[int], profile: Path = T4, cuda_version: str | None = None
    ) -> ProgramContainer:
        driver_version = "600.10" if cuda_version else None
        made = simulator.create(
            tmp_path / "cards", profile, cards, driver_version, cuda_version=cuda_version
        )
        uuids = [made.uuids[card] for card in granted]
        tenant = InterposedTenant(tmp_path / "tenant", uuids, 100 * MIB)
        return ProgramContainer(simulator_filters, tenant, dict(made.env))

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
def fake(fake_container: FakeContainer) -> ProgramContainer:
    """A container with 100 MiB of the first fake card, and the only device that it sees."""
    made = fake_container(FAKE_UUIDS[:1], 100 * MIB)
    made.env["FAKE_CUDA_DEVICES"] = "0"
    return made


@pytest.fixture
def simulated(simulated_container: SimulatedContainer) -> ProgramContainer:
    """A container with 100 MiB of the machine's only card."""
    return simulated_container(1, [0])


@pytest.fixture
def newest(simulated_container: SimulatedContainer) -> ProgramContainer:
    """A container with 100 MiB of the only card, over a driver that has every known symbol."""
    return simulated_container(1, [0], cuda_version="13.5")


@pytest.fixture(params=["fake", "simulated"])
def container(request: pytest.FixtureRequest) -> ProgramContainer:
    """A container with 100 MiB of a card, over either driver."""
    made = request.getfixturevalue(request.param)
    assert isinstance(made, ProgramContainer)
    return made


@pytest.fixture
def group(simulated: ProgramContainer) -> Iterator[Ranks]:
    """Three processes of a container with 100 MiB of the machine's only card."""
    with ranks(simulated, 3) as made:
        yield made
