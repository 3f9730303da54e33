# SPDX-License-Identifier: Apache-2.0
"""To multiples of how many bytes a driver rounds buffers up, as its own figures show.

NVIDIA's driver puts buffers of up to 1 MiB at multiples of 512 bytes into blocks of 2 MiB, and
gives larger ones blocks of their own; the figures of a process grow by whole blocks, so that the
512 cannot be seen in them. Another implementation of the driver API may count each buffer by
itself: then an account that rounds to 512 would be higher than the driver's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

_SMALL: Final = 64  # buffers of one byte: together far from a block
_LARGE: Final = 4  # buffers of one byte more than a block
_LARGE_BYTES: Final = (2 << 20) + 1
_USUAL_GRANULE: Final = 512
_USUAL_BLOCK: Final = 2 << 20


class Rounding(NamedTuple):
    """Of small and of large buffers; 0: not measured, so that NVIDIA's is assumed."""

    granule_bytes: int
    block_bytes: int


NOT_MEASURED: Final = Rounding(0, 0)


def measure_rounding(added: Callable[[int, int], int]) -> Rounding:
    """Return a driver's rounding; `added` takes (size, count) buffers and returns the growth.

    Growth that no rounding explains, also that of a driver which reports no such figures, is no
    measurement. No value above NVIDIA's is taken: it would be a block that several buffers share.
    """
    small, rest = divmod(added(1, _SMALL), _SMALL)
    granule = small if not rest and 0 < small <= _USUAL_GRANULE else 0
    large, rest = divmod(added(_LARGE_BYTES, _LARGE), _LARGE)
    above = large - _LARGE_BYTES + 1  # of a power of two up to a block, just that
    is_known = not rest and 0 < above <= _USUAL_BLOCK and above.bit_count() == 1
    return Rounding(granule, above if is_known else 0)
