"""Draw docs/flow.svg, the picture on the page of concepts: ``python docs/build_flow.py``."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

PICTURE = Path(__file__).with_name("flow.svg")

_WIDTH, _HEIGHT = 760, 300
_HIGH = 44

# key: left, top, width, text
_BOXES = {
    "turns": (20, 34, 90, "turns"),
    "chunks": (150, 34, 90, "chunks"),
    "embedding": (280, 34, 110, "embedding"),
    "gate": (430, 34, 130, "gate and merge"),
    "store": (600, 34, 140, "store: one file"),
    "ram": (20, 128, 240, "vectors, atoms, postings in RAM"),
    "question": (20, 222, 90, "question"),
    "scores": (150, 222, 110, "all scores"),
    "admission": (300, 222, 130, "what fits"),
    "layout": (470, 222, 130, "layout, folding"),
    "prompt": (640, 222, 100, "prompt text"),
}

# Each goes along corners, the last with an arrow head.
_ARROWS = [
    [(110, 56), (150, 56)],
    [(240, 56), (280, 56)],
    [(390, 56), (430, 56)],
    [(560, 56), (600, 56)],
    [(640, 78), (640, 150), (260, 150)],
    [(205, 172), (205, 222)],
    [(110, 244), (150, 244)],
    [(260, 244), (300, 244)],
    [(430, 244), (470, 244)],
    [(600, 244), (640, 244)],
    [(700, 78), (700, 186), (535, 186), (535, 222)],
]

_LABELS = [(20, 22, "add"), (20, 212, "pack"), (545, 205, "texts"), (450, 143, "derived")]

_STYLE = """\
rect{fill:#eef2f6;stroke:#5b7083}
path{fill:none;stroke:#5b7083;stroke-width:1.5}
text{font:14px system-ui,sans-serif;fill:#1d2730}
.box{text-anchor:middle}
.label{font-style:italic;fill:#5b7083}
.ground{fill:#fff;stroke:none}
@media (prefers-color-scheme:dark){
rect{fill:#2b3640;stroke:#8fa3b5}
path{stroke:#8fa3b5}
text{fill:#e6edf3}
.label{fill:#8fa3b5}
.ground{fill:#1b222a}
}"""


def picture() -> str:
    """The whole file."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="How turns become a prompt">',
        f"<style>\n{_STYLE}\n</style>",
        f'<rect class="ground" width="{_WIDTH}" height="{_HEIGHT}" rx="8"/>',
    ]
    for left, top, width, text in _BOXES.values():
        parts.append(f'<rect x="{left}" y="{top}" width="{width}" height="{_HIGH}" rx="6"/>')
        x, y = left + width / 2, top + _HIGH / 2 + 5
        parts.append(f'<text class="box" x="{x:g}" y="{y:g}">{escape(text)}</text>')
    for corners in _ARROWS:
        line = "L".join(f"{x} {y}" for x, y in corners)
        parts.append(f'<path d="M{line}{_head(corners[-2], corners[-1])}"/>')
    parts += [f'<text class="label" x="{x}" y="{y}">{text}</text>' for x, y, text in _LABELS]
    return "\n".join([*parts, "</svg>", ""])


def _head(before: tuple[int, int], tip: tuple[int, int]) -> str:
    """The two strokes of an arrow head, as a continuation of a path that ends in ``tip``."""
    x, y = tip
    along = ((x > before[0]) - (x < before[0]), (y > before[1]) - (y < before[1]))
    wings = [
        (x - 8 * along[0] + side * 5 * along[1], y - 8 * along[1] + side * 5 * along[0])
        for side in (1, -1)
    ]
    return "".join(f"M{wing_x} {wing_y}L{x} {y}" for wing_x, wing_y in wings)


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
