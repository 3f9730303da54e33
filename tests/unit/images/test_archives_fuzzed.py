# SPDX-License-Identifier: Apache-2.0
"""Any archive is opened or refused in a line, in little time and memory."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import time
import tracemalloc
from pathlib import Path
from typing import Final

from gpushare.images import NotFound, open_image
from tests.unit.images.test_archive import CUDART, LIB, layer, link, oci, saved

ROUNDS: Final = 500
MOST_SECONDS: Final = 10.0  # of processor time, for one
MOST_MEMORY: Final = (128 + 16) << 20  # a damaged header of xz may ask for the first
#: What fields of a header, lengths of records and digests are made into.
TYPES: Final = b"0123456789LKxgXSVMND\0"
NUMBERS: Final = (b"77777777777\0", b"\xff" * 12, b"\x80" + b"\xff" * 11, b"-1", b"0" * 12)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return `data` with one to four changes: of a byte, a block, a field, a length or a type."""
    made = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(made)) if made else 0
        block = place // 512 * 512
        sparse, kind = (482, b"\1"), (156, bytes((rng.choice(TYPES),)))
        at, field = rng.choice(((124, rng.choice(NUMBERS)), kind, sparse, (place - block, b"?")))
        change = rng.randrange(5)
        if change == 0:
            del made[place:]
        elif change == 1:
            made[block:block] = made[block : block + 512 * rng.randint(1, 8)]
        elif change == 2:
            made[place:place] = bytes(512 * rng.randint(1, 64))
        else:
            made[block + at : block + at + len(field)] = field
            if rng.random() < 0.8:
                _sum_up(made, block)
    return bytes(made)


def _sum_up(made: bytearray, block: int) -> None:
    """Make the checksum of a header right again, or nothing behind it is reached."""
    if block + 512 <= len(made):
        made[block + 148 : block + 156] = b" " * 8
        made[block + 148 : block + 156] = b"%06o\0 " % sum(made[block : block + 512])


def seeds(folder: Path) -> list[bytes]:
    long = "opt/venv/lib/python3.12/site-packages/nvidia/cuda_runtime/" + "x" * 120 + "/lib"
    one = layer(f"{LIB}/", CUDART, f"{long}/libcudart.so.12", link("usr/local/cuda", "cuda-12.4"))
    two = layer(
        f"{LIB}/.wh.libcudart.so.12.4.127", "usr/.wh..wh..opq", f"{LIB}/libcudart.so.12.6.7"
    )
    packed = [
        saved(folder / "p.tar", compress(one)).read_bytes()
        for compress in (gzip.compress, bz2.compress, lzma.compress)
    ]
    plain = saved(folder / "s.tar", one, two).read_bytes()
    return [plain, oci(folder / "o.tar", one).read_bytes(), gzip.compress(plain), *packed]


def refusal(path: Path) -> str:
    """Return why an archive is refused; empty if it is not."""
    try:
        with open_image(str(path)):
            return ""
    except NotFound as error:
        return str(error)


def test_any_archive_is_opened_or_refused_in_a_line(tmp_path: Path) -> None:
    rng, opened, path = random.Random(0), 0, tmp_path / "image.tar"
    known = seeds(tmp_path)
    tracemalloc.start()
    try:
        for number in range(ROUNDS):
            path.write_bytes(mutated(rng.choice(known), rng))
            begin = time.thread_time()
            refused = refusal(path)
            opened += not refused
            assert "\n" not in refused, number
            assert not refused or refused.endswith("."), number
            assert time.thread_time() - begin < MOST_SECONDS, number
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()
    assert ROUNDS // 20 < opened < ROUNDS - ROUNDS // 20, "this shows nothing"
