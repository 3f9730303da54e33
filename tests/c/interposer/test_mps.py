# SPDX-License-Identifier: Apache-2.0
"""A tenant of a card in MPS mode is a client of the server, or has no GPU. Its limits only fall."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import abi
from gpushare.simulator import Simulator, device_file
from tests.c.simulator.conftest import SimulatorMachine
from tests.c.simulator.mps_daemon import MpsDaemon, mps_daemon

from .container import ProgramContainer, program

PIPES = "CUDA_MPS_PIPE_DIRECTORY"
PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
PINNED = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
PRIORITY = "CUDA_MPS_CLIENT_PRIORITY"
PROTOCOL = "CUDA_MPS_PROTOCOL_VERSION"
SYSTEM_NOT_READY = 802
INIT = "print(cu.cuInit(0))"
#: What the driver finds: Python's os.environ is a copy of what there was at the start.
FOUND = (
    "libc = ctypes.CDLL(None)",
    "libc.getenv.restype = ctypes.c_char_p",
    "import sys",
    "print((libc.getenv(sys.argv[1].encode()) or b'').decode())",
)


@pytest.fixture
def server(simulated: ProgramContainer) -> Iterator[MpsDaemon]:
    """The control daemon of the container's card."""
    device = Path(simulated.env["GPUSHARE_SIM_DEVICE"])
    made = Simulator(device, device.with_name("cdi.json"), ())
    with mps_daemon(SimulatorMachine(made, device_file.libraries())) as running:
        yield running


@pytest.fixture
def client(simulated: ProgramContainer, server: MpsDaemon) -> ProgramContainer:
    """A container whose processes have to be clients of that server."""
    require(simulated, {PIPES: str(server.folder / "pipe")})
    return simulated


def require(container: ProgramContainer, variables: dict[str, str]) -> None:
    """Do what gpushared does for a client: a word in its page, and the file of variables."""
    with container.tenant.grant.open("r+b") as page:
        page.seek(abi.GRANT_HEADER_MPS)
        page.write(struct.pack("<I", 1))
    text = "".join(f"{name}={value}\n" for name, value in variables.items())
    (container.tenant.directory / abi.MPS_NAME).write_text(text)


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    """Return what a program printed that ended well."""
    assert done.returncode == 0, done.stderr
    return done.stdout


def init(container: ProgramContainer) -> tuple[int, str]:
    """Return what cuInit returned, and what the library said."""
    done = container.run("python3", "-c", program(INIT))
    return int(succeeded(done)), done.stderr


def variable(container: ProgramContainer, name: str) -> str:
    """Return a variable as the driver finds it in cuInit."""
    done = container.run("python3", "-c", program("assert cu.cuInit(0) == 0", *FOUND), name)
    return succeeded(done).rstrip("\n")


def clients(server: MpsDaemon) -> int:
    """Return how many clients have ever connected."""
    return server.log().count("NEW CLIENT")


@pytest.mark.parametrize("own", [None, "", "/nonexistent", "/tmp/nvidia-mps"])
def test_a_process_is_a_client_whatever_its_environment_says(
    client: ProgramContainer, server: MpsDaemon, own: str | None
) -> None:
    if own is not None:
        client.env[PIPES] = own
    assert init(client) == (0, "")
    assert clients(server) == 1


def test_pipes_beside_the_pages(simulated: ProgramContainer, server: MpsDaemon) -> None:
    (simulated.tenant.directory / abi.PIPES_NAME).symlink_to(server.folder / "pipe")
    require(simulated, {PIPES: abi.PIPES_NAME})
    assert init(simulated) == (0, "")
    assert clients(server) == 1


def test_a_tenant_without_mps_is_no_client(simulated: ProgramContainer, server: MpsDaemon) -> None:
    assert init(simulated)[0] == 0
    assert clients(server) == 0


def test_without_the_control_daemon_there_is_no_gpu(
    simulated: ProgramContainer, tmp_path: Path
) -> None:
    require(simulated, {PIPES: str(tmp_path)})
    code, said = init(simulated)
    assert code == SYSTEM_NOT_READY
    assert "has to use the MPS server of its card" in said
    assert f"{tmp_path}/control: No such file or directory" in said


def test_a_driver_that_does_not_use_the_server_gives_no_gpu(
    simulated: ProgramContainer, tmp_path: Path
) -> None:
    """As behind a stale socket: the driver says nothing, and gives the whole card."""
    (tmp_path / "control").touch()
    require(simulated, {PIPES: str(tmp_path)})
    code, said = init(simulated)
    assert code == SYSTEM_NOT_READY
    assert "the driver does not use it" in said


@pytest.mark.parametrize("text", ["", "CUDA_MPS_PIPE_DIRECTORY=/run"])
def test_a_file_of_variables_that_is_not_complete_gives_no_gpu(
    client: ProgramContainer, text: str
) -> None:
    (client.tenant.directory / abi.MPS_NAME).write_text(text)
    code, said = init(client)
    assert code == SYSTEM_NOT_READY
    assert f"{abi.MPS_NAME}: is not complete" in said


def test_without_the_file_of_variables_there_is_no_gpu(client: ProgramContainer) -> None:
    (client.tenant.directory / abi.MPS_NAME).unlink()
    assert init(client)[0] == SYSTEM_NOT_READY


#: What gpushared grants, what the process's environment says, and what the driver finds.
LOWERED = {
    PERCENTAGE: [
        ("30", None, "30"),
        ("30", "20", "20"),
        ("30", "50", "30"),
        ("30", "12.5", "12.5"),
        ("30", "0", "30"),
        ("30", "nan", "30"),
        ("30", "", "30"),
        ("", "40", "40"),
        ("100", "250", ""),
        ("100", None, ""),
    ],
    PINNED: [
        ("0=64M", None, "0=64M"),
        ("0=64M", "0=32M", "0=32M"),
        ("0=64M", "0=1G", "0=64M"),
        ("0=2G", "0=1G", "0=1024M"),
        ("0=64M", "UUID=16M", "0=16M"),
        # One entry that is malformed, or of a card that the process does not see, would drop all.
        ("0=64M", "1=1G,0=32M", "0=32M"),
        ("0=64M", "GPU-00000000-0000-0000-0000-000000000000=1G", "0=64M"),
        ("0=64M", "0=32M,nonsense", "0=32M"),
        ("0=64M", "0=32MB", "0=64M"),
        ("0=64M", "0=0M", "0=64M"),
        ("0=64M", "0=-1M", "0=64M"),
        ("0=64M", "0=18446744073709551615G", "0=64M"),
        ("0=64M", ",", "0=64M"),
        ("0=64M", "", "0=64M"),
        ("", "0=32M", "0=32M"),
        ("", "1=1G", ""),
    ],
    PRIORITY: [
        ("0", None, ""),
        ("0", "1", "1"),
        ("1", "0", "1"),
        ("1", None, "1"),
        ("0", "-1", ""),
    ],
}


@pytest.mark.parametrize(
    ("name", "granted", "own", "found"),
    [(name, *row) for name, rows in LOWERED.items() for row in rows],
)
def test_a_process_can_only_lower_a_limit(
    client: ProgramContainer,
    server: MpsDaemon,
    name: str,
    granted: str,
    own: str | None,
    found: str,
) -> None:
    require(client, {PIPES: str(server.folder / "pipe"), name: granted})
    if own is not None:
        offset = abi.grant_card_offset(0) + abi.GRANT_CARD_UUID
        uuid = client.tenant.grant.read_bytes()[offset : offset + 48].partition(b"\0")[0]
        client.env[name] = own.replace("UUID", uuid.decode())
    assert variable(client, name) == found


def test_a_process_does_not_choose_the_protocol(client: ProgramContainer) -> None:
    client.env[PROTOCOL] = "3"
    assert variable(client, PROTOCOL) == ""
