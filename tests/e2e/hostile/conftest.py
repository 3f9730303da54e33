# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.stack import Stack

from .container import Container, Place
from .witness import Witness

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def place() -> Iterator[Place]:
    """One daemon for the attacks that must leave it as it was."""
    with Stack() as stack:
        made = Place(stack)
        stack.start_daemon()
        yield made
        made.close()


@pytest.fixture
def own() -> Iterator[Place]:
    """A daemon that may be killed.

    What it had reserved before is waited for as long as `bind` says.
    """
    with Stack() as stack:
        made = Place(stack, bind=1.5)
        stack.start_daemon()
        yield made
        made.close()


@pytest.fixture(params=["runc", "crun"])
def runtime(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def container(place: Place, runtime: str) -> Iterator[Container]:
    """A container that asks for 1 GiB; nothing of it is left afterwards, and the daemon lives."""
    made = Container(place, runtime)
    yield made
    made.remove()
    place.assert_empty()


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[Witness]:
    made = Witness(tmp_path / "host")
    yield made
    made.close()


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compile a source beside this file."""
    folder = tmp_path_factory.mktemp("hostile")

    def build(name: str, *flags: str) -> Path:
        output = folder / name
        if not output.exists():
            compiler = shutil.which("gcc")
            if compiler is None:
                pytest.fail("gcc is not installed: run ./dev setup")
            strict = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Werror")
            command = [compiler, *strict, *flags, str(HERE / f"{name}.c"), "-o", str(output)]
            subprocess.run(command, check=True)
        return output

    return build
