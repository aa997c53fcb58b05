"""A line plot as SVG text: a logarithmic x axis, a y axis from zero. No library needed.

Knows nothing of what is plotted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

Point = tuple[float, float]

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 48, 56
COLOURS = ("#1f6feb", "#8b949e", "#d1242f", "#1a7f37")


def line_plot(title: str, x_title: str, y_title: str, lines: Mapping[str, Sequence[Point]]) -> str:
    """`lines`: name -> points with x > 0 and y >= 0, by x. Each x gets a tick."""
    xs = sorted({x for points in lines.values() for x, _ in points})
    top = _round_up(max(y for points in lines.values() for _, y in points))
    low, high = math.log(xs[0]), math.log(xs[-1])

    def at(x: float, y: float) -> Point:
        across = (math.log(x) - low) / ((high - low) or 1.0)
        return (
            LEFT + across * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM),
        )

    parts = [_text(WIDTH / 2, 24, title, size=15)]
    for step in range(5):
        y = top * step / 4
        (x0, height), (x1, _) = at(xs[0], y), at(xs[-1], y)
        parts.append(
            f'<line x1="{x0:.1f}" y1="{height:.1f}" x2="{x1:.1f}" y2="{height:.1f}" '
            'stroke="#d0d7de"/>'
        )
        parts.append(_text(x0 - 8, height + 4, f"{y:g}", anchor="end"))
    for x in xs:
        parts.append(_text(at(x, 0)[0], HEIGHT - BOTTOM + 18, f"{x:g}"))
    parts.append(_text(WIDTH / 2, HEIGHT - 14, x_title))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<g transform="rotate(-90 16 {middle})">{_text(16, middle, y_title)}</g>')
    for index, (name, points) in enumerate(lines.items()):
        parts += _line(name, [at(x, y) for x, y in points], index)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _line(name: str, points: Sequence[Point], index: int) -> list[str]:
    colour = COLOURS[index % len(COLOURS)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in points]
    legend_x, legend_y = LEFT + 12, HEIGHT - BOTTOM - 16 - 18 * index
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
        *dots,
        f'<rect x="{legend_x}" y="{legend_y - 9}" width="10" height="10" fill="{colour}"/>',
        _text(legend_x + 16, legend_y, name, anchor="start"),
    ]


def _text(x: float, y: float, text: str, *, anchor: str = "middle", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="#1f2328">{escape(text)}</text>'
    )


def _round_up(value: float) -> float:
    """To 1, 2, 4 or 8 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 2, 4, 8, 10) if power * step >= value)
