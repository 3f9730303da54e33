# SPDX-License-Identifier: Apache-2.0
"""The scenarios as a table: without a scheduler, and with it.

Example: python -m tests.model A B
"""

import sys

from tests.model.scenarios import SCENARIOS, Outcome, play

HEAD = ("", "scenario", "native got", "err", "busy", "p99", "gated got", "err", "busy", "p99", "/s")


def _cells(outcome: Outcome) -> list[str]:
    latencies = {
        name: f"{outcome.p99[name]:.1f}" for name in outcome.p99 if outcome.p99[name] < 1000
    }
    got = [f"{percent:.1f}" for percent in outcome.got.values()]
    if len(got) > 4:
        got = [*got[:2], "..."]
    return [
        " ".join(got),
        f"{outcome.mean_error:.2f}/{outcome.max_error:.2f}" if outcome.max_error else "",
        f"{outcome.busy:.1f}",
        " ".join(latencies.values()),
    ]


def main(keys: list[str]) -> int:
    """Print a row for each key; all without one."""
    unknown = [key for key in keys if key not in SCENARIOS]
    if unknown:
        print(f"no scenario {', '.join(unknown)}: there are {' '.join(SCENARIOS)}", file=sys.stderr)
        return 2
    print(f"| {' | '.join(HEAD)} |")
    print(f"|{'---|' * len(HEAD)}")
    for key in keys or SCENARIOS:
        scenario = SCENARIOS[key]
        gated = play(scenario)
        row = [key, scenario.what, *_cells(play(scenario, gated=False)), *_cells(gated)]
        print(f"| {' | '.join(row)} | {gated.decisions:.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
