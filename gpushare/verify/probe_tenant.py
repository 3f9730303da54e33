# SPDX-License-Identifier: Apache-2.0
"""A running probe: it reads commands on stdin and prints results as JSON lines."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from queue import Empty, Queue
from threading import Thread
from types import TracebackType
from typing import Any

ANSWER_SECONDS = 60.0  # the first container start of an engine on a slow disk


class ProbeFailed(RuntimeError):
    """The probe exited or sent no result in time; carries its stderr."""


class ProbeTenant:
    """A process `argv` that takes commands on stdin and prints results on stdout."""

    def __init__(
        self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.argv = list(argv)
        self.process = subprocess.Popen(
            self.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=None if env is None else dict(env),
        )
        self._lines: Queue[str | None] = Queue()
        self._errors: list[str] = []
        self._readers = [
            Thread(target=self._read_answers, daemon=True),
            Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> ProbeTenant:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> dict[str, Any]:
        """Return the first result of the probe: whether cuInit found a card."""
        return self.answer("driver")

    def ask(self, command: str) -> dict[str, Any]:
        """Send `command`; return its result."""
        self.tell(command)
        return self.answer(command.split(maxsplit=1)[0])

    def tell(self, command: str) -> None:
        """Send `command` without reading its result."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise ProbeFailed(f"{self.name}: {error}; {self.errors}") from error

    def answer(self, event: str) -> dict[str, Any]:
        """Return the next result, which must be for `event`."""
        try:
            line = self._lines.get(timeout=ANSWER_SECONDS)
        except Empty:
            line = None
        if line is None:
            self._readers[1].join(timeout=5)
            raise ProbeFailed(f"{self.name} did not respond to {event}: {self.errors}")
        try:
            found = json.loads(line)
        except ValueError as error:
            raise ProbeFailed(f"{self.name} sent {line!r} for {event}") from error
        if not isinstance(found, dict) or found.get("event") != event:
            raise ProbeFailed(f"{self.name} sent {found} for {event}")
        return found

    @property
    def errors(self) -> str:
        """What the probe and its engine have written to stderr, on one line."""
        lines = (line.strip() for line in self._errors)
        return " | ".join(line for line in lines if line) or "nothing on stderr"

    def wait(self, seconds: float = ANSWER_SECONDS) -> int:
        """Wait for the command to exit; return its status."""
        status = self.process.wait(timeout=seconds)
        self._readers[1].join(timeout=5)
        return status

    def close(self) -> None:
        """Close stdin, at which the probe exits, and wait for that."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            with suppress(BrokenPipeError):  # it has exited already
                self.process.stdin.close()
        try:
            self.process.wait(timeout=ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for reader, stream in zip(
            self._readers, (self.process.stdout, self.process.stderr), strict=True
        ):
            reader.join()
            if stream is not None:
                stream.close()

    def _read_answers(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(self.process.stderr)
