# SPDX-License-Identifier: Apache-2.0
"""Random sequences of evictions leave every byte of every survivor right (tools/bench/evict.py)."""

from __future__ import annotations

import os
import random
from contextlib import ExitStack

from gpushare.verify.runners import ProbeFailed
from tools.bench.evict import sequences
from tools.bench.turns import BenchError

SEQUENCES = int(os.environ.get("GPUSHARE_EVICT_SEQUENCES", "30"))


def test_random_sequences_leave_every_byte_right() -> None:
    seed = int(os.environ.get("GPUSHARE_EVICT_SEED", "0")) or random.SystemRandom().getrandbits(32)
    try:
        with ExitStack() as opened:
            made = sequences(seed, SEQUENCES, opened)
            evictions = made.own_milliseconds()["tenant-evicted"]
            made.close()
    except (BenchError, ProbeFailed) as error:
        raise AssertionError(f"GPUSHARE_EVICT_SEED={seed}: {error}") from error
    assert made.checked
    assert evictions
