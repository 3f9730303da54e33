# SPDX-License-Identifier: Apache-2.0
"""The scenarios as tables: without a scheduler, and with it.

Example: python -m tools.model A B P8-100
"""

import sys

from tools.model.scenarios import SCENARIOS, ModelResult, play
from tools.model.synchronising import SYNCHRONISING, judge

HEAD = "|  | scenario | native: used | err | busy | p99 | gated: used | err | busy | p99 | /s |"
SYNCHRONISING_HEAD = (
    "|  | scenario | alone | native: used | busy | bound "
    "| gated: used | err | busy | of native | p99 | /s |"
)


def _cells(outcome: ModelResult) -> list[str]:
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


def _list(percents: list[float]) -> str:
    return " ".join(f"{percent:.1f}" for percent in percents)


def _print_head(head: str) -> None:
    print(head)
    print("|" + "---|" * (head.count("|") - 1))


def _print_synchronising(key: str) -> None:
    scenario = SYNCHRONISING[key]
    judged = judge(scenario)
    gated = judged.gated
    row = [
        key,
        scenario.what,
        _list(judged.alone),
        _list(list(judged.native.got.values())),
        f"{judged.native.busy:.1f}",
        f"{judged.bound:.1f}" if judged.bound else "",
        _list(list(gated.got.values())),
        f"{judged.mean_error:.2f}/{judged.max_error:.2f}",
        f"{gated.busy:.1f}",
        f"{judged.of_native:.1f}",
        " ".join(
            f"{gated.p99[name]:.1f} (native {judged.native.p99[name]:.1f})" for name in gated.p99
        ),
        f"{gated.decisions:.0f}",
    ]
    print(f"| {' | '.join(row)} |", flush=True)


def main(keys: list[str]) -> int:
    """Print a row for each key; all without one."""
    known = [*SCENARIOS, *SYNCHRONISING]
    unknown = [key for key in keys if key not in known]
    if unknown:
        print(f"no scenario {', '.join(unknown)}: there are {' '.join(known)}", file=sys.stderr)
        return 2
    wanted = [key for key in keys or known if key in SCENARIOS]
    if wanted:
        _print_head(HEAD)
    for key in wanted:
        scenario = SCENARIOS[key]
        gated = play(scenario)
        row = [key, scenario.what, *_cells(play(scenario, gated=False)), *_cells(gated)]
        print(f"| {' | '.join(row)} | {gated.decisions:.0f} |", flush=True)
    wanted = [key for key in keys or known if key in SYNCHRONISING]
    if wanted:
        _print_head(SYNCHRONISING_HEAD)
    for key in wanted:
        _print_synchronising(key)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
