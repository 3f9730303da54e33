# SPDX-License-Identifier: Apache-2.0
"""Scenarios that test on a host that quotas are enforced: for `verify`, the demo and the tests.

MemoryScenario(Docker(), ["gpushare"], Report(sys.stdout)).run()
"""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TextIO

from gpushare.verify.runners import ProbeFailed, ProbeTenant, TenantRunner, environment, spawn

# --- the base of scenarios: tenants, commands and their output ---

GIB: Final = 1 << 30
OUT_OF_MEMORY: Final = "CUDA_ERROR_OUT_OF_MEMORY"
GRANULE: Final = 2 << 20  # the largest allocation granule of a driver
# The daemon samples every 250 ms; an engine takes a second to remove a killed container.
SETTLE_SECONDS: Final = 15.0

BOLD, DIM, GREEN, RED, PLAIN = "\033[1m", "\033[2m", "\033[32m", "\033[1;31m", "\033[0m"


@dataclass(frozen=True)
class Sizes:
    """The requests of the scenario in bytes and percent; `small` + `large` fit the card.

    If the compute of the card is already allocated, the cores are 0, which requests none.
    """

    small: int = 4 * GIB
    large: int = 8 * GIB
    resized: int = 6 * GIB
    small_cores: int = 30
    large_cores: int = 60


@dataclass
class ScenarioSteps:
    """Tenants of `engine`, inspected with `cli`; their names begin with `prefix`.

    Those that request a part of a card request it with `backend`, "" for none.
    """

    engine: TenantRunner
    cli: list[str]
    report: Report
    prefix: str = ""
    sizes: Sizes = Sizes()
    backend: str = ""

    def fill(self, tenant: ProbeTenant, api: str, free: int) -> dict[str, Any]:
        """Allocate all free memory through `api`, unless the limit is not enforced at all.

        On a real card, filling without a limit would use up the memory of all other containers.
        """
        over = tenant.ask(f"alloc {api} {free + GRANULE}")
        if over["code"] != 0:
            return tenant.ask(f"fill {api}")
        tenant.ask("free")
        return over | {"granule": GRANULE}

    def full_name(self, name: str) -> str:
        """Return the engine's name of tenant `name`."""
        return self.prefix + name

    def started(self, stack: ExitStack, name: str, quota: Mapping[str, str]) -> ProbeTenant:
        """Start tenant `name`; it is removed when `stack` is closed."""
        tenant = stack.enter_context(self.spawned(name, quota))
        tenant.start()
        return tenant

    @contextmanager
    def spawned(self, name: str, quota: Mapping[str, str], *command: str) -> Iterator[ProbeTenant]:
        """Run the probe as tenant `name`, whether it starts or not, and remove it afterwards."""
        full = self.full_name(name)
        quota = {**quota, "backend": self.backend} if quota and self.backend else quota
        self.report.command(self.engine.run(full, quota, *command))
        try:
            with spawn(self.engine, full, quota, *command) as tenant:
                yield tenant
        finally:
            self.engine.remove(full)

    def show(self, *words: str) -> None:
        """Print a `gpushare` command and its output."""
        self.report.command(["gpushare", *words])
        self.report.output(self.cli_output(*words))

    def cli_output(self, *words: str) -> str:
        """Return the output of a `gpushare` command. Raises ProbeFailed if it fails."""
        done = subprocess.run(
            [*self.cli, *words],
            check=False,
            capture_output=True,
            text=True,
            env=environment(self.engine),
        )
        if done.returncode:
            raise ProbeFailed(f"gpushare {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def tenants(self) -> dict[str, dict[str, Any]]:
        """Return the rows of `gpushare ps` by name."""
        # containerd's names are namespace/id.
        rows = json.loads(self.cli_output("ps", "--json"))
        return {row["name"].rpartition("/")[2]: row for row in rows}

    def cards(self) -> list[dict[str, Any]]:
        """Return the rows of `gpushare ls`, but for cards with unified memory."""
        cards = json.loads(self.cli_output("ls", "--json"))
        return [card for card in cards if card["mode"] != "unified"]

    def card(self, index: int) -> dict[str, Any]:
        """Return the row of card `index`."""
        return next(card for card in self.cards() if card["index"] == index)


def wait_until(condition: Callable[[], bool]) -> bool:
    """Whether `condition` becomes true within SETTLE_SECONDS."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@dataclass(frozen=True)
class CheckResult:
    """One check: the claim, whether it is true, and otherwise what was observed.

    `figures` are the measurements that decided it, if any.
    """

    claim: str
    passed: bool
    observed: str = ""
    figures: Mapping[str, float | None] | None = None


@dataclass
class Report:
    """Collects checks and prints them as they come; with `stream` None it prints nothing."""

    stream: TextIO | None = None
    colour: bool = False
    checks: list[CheckResult] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether there was at least one check and all of them passed."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def summary(self) -> str:
        """The number of checks that passed, as text."""
        passed = sum(check.passed for check in self.checks)
        return f"{passed} of {len(self.checks)} checks passed"

    def title(self, text: str) -> None:
        """Begin a step."""
        self.line(f"\n{BOLD}{text}{PLAIN}")

    def say(self, text: str) -> None:
        """Print a line that is not a check."""
        self.line(f"  {text}")

    def command(self, argv: Sequence[str]) -> None:
        """Print a command as the reader can type it."""
        self.line(f"{DIM}${PLAIN} {shlex.join(argv)}")

    def output(self, text: str) -> None:
        """Print the output of a command."""
        for line in text.rstrip("\n").splitlines():
            self.line(f"  {DIM}{line}{PLAIN}")

    def check(
        self,
        claim: str,
        passed: bool,
        observed: object = "",
        figures: Mapping[str, float | None] | None = None,
    ) -> bool:
        """Record the check of `claim`, with what was observed if it failed; return `passed`."""
        self.checks.append(CheckResult(claim, passed, "" if passed else str(observed), figures))
        if passed:
            self.line(f"  {GREEN}PASS{PLAIN}    {claim}")
        else:
            self.line(f"  {RED}FAIL{PLAIN}    {claim}: {observed}")
        return passed

    def line(self, text: str) -> None:
        """Print a line."""
        if self.stream is None:
            return
        if not self.colour:
            for code in (BOLD, DIM, GREEN, RED, PLAIN):
                text = text.replace(code, "")
        print(text, file=self.stream, flush=True)
