# SPDX-License-Identifier: Apache-2.0
"""Draws the diagrams of the documentation: docs/pictures/NAME.yaml becomes NAME.svg.

    python docs/diagram.py            draw them
    python docs/diagram.py --check    fail if one differs from its source

A source has `size` (in cells), `frames` around `boxes`, and `arrows` along paths. Text is drawn by
the reader's browser, so the result does not depend on the fonts of this machine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

import yaml

PICTURES: Final = Path(__file__).resolve().parent / "pictures"
CELL: Final = 20  # pixels
_LINE: Final = 17  # between the lines of a box
_COLOURS: Final = {"c": "#e3f2e1", "python": "#e1ecf7", "other": "#f1f1f1"}
_LEGEND: Final = {"c": "C", "python": "Python", "other": "not gpushare"}
_HEAD: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" \
aria-label="{title}">
<!-- Drawn by docs/diagram.py from {source}: change that, and run it again. -->
<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" \
orient="auto-start-reverse"><path d="M0 0 10 5 0 10z" fill="#444"/></marker></defs>
<style>text {{ font: 13px sans-serif; fill: #1a1a1a; text-anchor: middle }} \
.name {{ font-weight: bold; font-size: 14px }} .label {{ font-size: 12px; fill: #444 }} \
path.arrow {{ fill: none; stroke: #444; stroke-width: 1.3; marker-end: url(#head) }}</style>
<rect width="{width}" height="{height}" fill="#fff"/>"""


def main(argv: Sequence[str]) -> int:
    """Draw the diagrams, or compare them; return 1 if one differs."""
    differs = False
    for source in sorted(PICTURES.glob("*.yaml")):
        text, path = draw(source), source.with_suffix(".svg")
        if "--check" not in argv:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.stderr.write(f"{path.name} differs from {source.name}: run docs/diagram.py\n")
            differs = True
    return int(differs)


def draw(source: Path) -> str:
    """Return the SVG of a source."""
    found = yaml.safe_load(source.read_text(encoding="utf-8"))
    width, height = (_pixels(length) for length in found["size"])
    head = _HEAD.format(
        width=width, height=height, title=escape(found["title"]), source=source.name
    )
    lines = [head, _text(width / 2, 24, found["title"], "name")]
    for frame in found["frames"]:
        lines.append(_rectangle(frame["at"], "#fff", 'stroke-dasharray="5 4"'))
        left, top, *_ = frame["at"]
        lines.append(_text(_pixels(left) + 46, _pixels(top) + 19, frame["text"], "label"))
    for box in found["boxes"]:
        lines += _box(box)
    for arrow in found["arrows"]:
        lines += _arrow(arrow)
    lines += _legend(height)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _box(box: dict[str, Any]) -> Iterator[str]:
    left, top, width, height = (_pixels(length) for length in box["at"])
    yield _rectangle(box["at"], _COLOURS[box["kind"]], "")
    first = top + height / 2 - _LINE * (len(box["text"]) - 1) / 2 + 5
    for number, text in enumerate(box["text"]):
        style = "label" if number else "name"
        yield _text(left + width / 2, first + _LINE * number, text, style)


def _arrow(arrow: dict[str, Any]) -> Iterator[str]:
    points = [(_pixels(x), _pixels(y)) for x, y in arrow["path"]]
    yield f'<path class="arrow" d="M{" L".join(f"{x:g} {y:g}" for x, y in points)}"/>'
    if "text" not in arrow:
        return
    (x1, y1), (x2, y2) = points[0], points[-1]
    x, y = (x1 + x2) / 2, (y1 + y2) / 2
    if "at" in arrow:
        x, y = (_pixels(length) for length in arrow["at"])
    half = len(arrow["text"]) * 3.4
    box = f'x="{x - half:g}" y="{y - 15:g}" width="{2 * half:g}" height="14"'
    if x1 != x2 and "at" not in arrow:
        yield _text(x, y - 6, arrow["text"], "label")
    else:  # on the line
        yield f'<rect {box} fill="#fff" opacity="0.9"/>'
        yield _text(x, y - 4, arrow["text"], "label")


def _legend(height: float) -> Iterator[str]:
    x = 30.0
    for kind, name in _LEGEND.items():
        yield (
            f'<rect x="{x:g}" y="{height - 20:g}" width="14" height="12" '
            f'fill="{_COLOURS[kind]}" stroke="#777"/>'
        )
        yield _text(x + 24 + len(name) * 3.2, height - 10, name, "label")
        x += 50 + len(name) * 7


def _rectangle(at: list[float], colour: str, more: str) -> str:
    left, top, width, height = (_pixels(length) for length in at)
    return (
        f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" rx="6" '
        f'fill="{colour}" stroke="#777" {more}/>'
    ).replace(" />", "/>")


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text class="{style}" x="{x:g}" y="{y:g}">{escape(text)}</text>'


def _pixels(cells: float) -> float:
    return round(cells * CELL, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
