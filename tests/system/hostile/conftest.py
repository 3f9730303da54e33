# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.compiled import STRICT, compile_c
from tests.stack import Stack

from .container import RuntimeContainer, RuntimeNamespace
from .witness import Witness

HERE = Path(__file__).parent


@contextmanager
def started(**settings: Any) -> Iterator[RuntimeNamespace]:
    with Stack() as stack:
        made = RuntimeNamespace(stack, **settings)
        stack.start_daemon()
        yield made
        made.close()


@pytest.fixture(scope="session")
def place() -> Iterator[RuntimeNamespace]:
    """One daemon for the attacks that must leave it as it was."""
    with started() as made:
        yield made


@pytest.fixture
def binds() -> str:
    """What binds a container that is created, "" for the default."""
    return ""


@pytest.fixture
def own(binds: str) -> Iterator[RuntimeNamespace]:
    """A daemon that may be killed.

    What it had reserved before is waited for as long as `bind` says.
    """
    with started(bind=binds, bind_timeout_seconds=1.5) as made:
        yield made


@pytest.fixture
def runtime() -> str:
    """runc; a test of crun too asks for it."""
    return "runc"


@pytest.fixture
def container(place: RuntimeNamespace, runtime: str) -> Iterator[RuntimeContainer]:
    """A container that asks for 1 GiB; nothing of it is left afterwards, and the daemon lives."""
    made = RuntimeContainer(place, runtime)
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
            compile_c(output, *STRICT, *flags, HERE / f"{name}.c")
        return output

    return build
