"""Charts as SVG text, drawn for a width of 360 units so that a phone shows them in full.

Nothing is measured here: each function takes plain numbers and returns one `<svg>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 360, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 44, 44
COLORS = ("#6b6b6b", "#1565c0")
_INK, _GRID = "#222", "#ddd"
_FONT = "font-family='system-ui,-apple-system,Segoe UI,Roboto,sans-serif'"


@dataclass(frozen=True)
class Series:
    """One line of a chart: at each category a value, and its range where there is one."""

    name: str
    values: Sequence[float | None]
    lows: Sequence[float | None] = ()
    highs: Sequence[float | None] = ()

    def span(self) -> list[float]:
        """Every number that has to fit into the chart."""
        numbers = [*self.values, *self.lows, *self.highs]
        return [number for number in numbers if number is not None]


def interval_chart(
    title: str, categories: Sequence[str], series: Sequence[Series], x_label: str
) -> str:
    """Ratios with intervals around a line at 1."""
    numbers = [n for one in series for n in one.span()] + [1.0]
    margin = max(0.02, (max(numbers) - min(numbers)) * 0.08)
    frame = _Frame(
        title, categories, x_label, min(numbers) - margin, max(numbers) + margin
    )
    y = frame.y(1.0)
    frame.add(
        f"<line x1='{_LEFT}' y1='{y:.1f}' x2='{WIDTH - _RIGHT}' y2='{y:.1f}' "
        f"stroke='{_INK}' stroke-dasharray='4 3'/>"
    )
    _draw(frame, series, COLORS[::-1])
    return frame.svg(series, COLORS[::-1])


def value_chart(
    title: str, categories: Sequence[str], series: Sequence[Series], x_label: str
) -> str:
    """Values from 0, one mark and range per series and category."""
    top = max([n for one in series for n in one.span()], default=1.0)
    frame = _Frame(title, categories, x_label, 0.0, top * 1.08 or 1.0)
    _draw(frame, series, COLORS)
    return frame.svg(series, COLORS)


def bar_chart(title: str, categories: Sequence[str], series: Sequence[Series]) -> str:
    """Bars from 0 with their number on top."""
    top = max([n for one in series for n in one.span()], default=1.0)
    frame = _Frame(title, categories, "", 0.0, top * 1.15 or 1.0)
    width = min(46.0, frame.step * 0.8 / max(1, len(series)))
    for place, (one, color) in enumerate(zip(series, COLORS)):
        for index, value in enumerate(one.values):
            if value is None:
                continue
            x = frame.x(index) + (place - (len(series) - 1) / 2) * width - width * 0.46
            y = frame.y(value)
            frame.add(
                f"<rect x='{x:.1f}' y='{y:.1f}' width='{width * 0.92:.1f}' "
                f"height='{HEIGHT - _BOTTOM - y:.1f}' fill='{color}'/>"
            )
            frame.text(x + width * 0.46, y - 4, number(value), anchor="middle")
    return frame.svg(series, COLORS)


class _Frame:
    """Axes, grid and title, and what is drawn into them."""

    def __init__(
        self,
        title: str,
        categories: Sequence[str],
        x_label: str,
        low: float,
        high: float,
    ) -> None:
        self._title, self._low, self._high = title, low, high
        self.step = (WIDTH - _LEFT - _RIGHT) / max(1, len(categories))
        self._parts: list[str] = []
        for tick in ticks(low, high):
            y = self.y(tick)
            self.add(
                f"<line x1='{_LEFT}' y1='{y:.1f}' x2='{WIDTH - _RIGHT}' y2='{y:.1f}' "
                f"stroke='{_GRID}'/>"
            )
            self.text(_LEFT - 5, y + 4, number(tick), anchor="end")
        for index, category in enumerate(categories):
            self.text(self.x(index), HEIGHT - _BOTTOM + 16, category, anchor="middle")
        if x_label:
            self.text(
                (WIDTH + _LEFT) / 2, HEIGHT - _BOTTOM + 33, x_label, anchor="middle"
            )

    def x(self, index: int) -> float:
        """Centre of a category."""
        return _LEFT + self.step * (index + 0.5)

    def y(self, value: float) -> float:
        share = (value - self._low) / (self._high - self._low)
        return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)

    def add(self, part: str) -> None:
        self._parts.append(part)

    def text(self, x: float, y: float, text: str, anchor: str = "start") -> None:
        self.add(
            f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'>{escape(text)}</text>"
        )

    def svg(self, series: Sequence[Series], colors: Sequence[str]) -> str:
        head = f"<text x='4' y='15' font-weight='600'>{escape(self._title)}</text>"
        x, legend = float(_LEFT), []
        for one, color in zip(series, colors):
            legend.append(
                f"<rect x='{x:.0f}' y='24' width='10' height='10' fill='{color}'/>"
                f"<text x='{x + 14:.0f}' y='33'>{escape(one.name)}</text>"
            )
            x += 30 + 6.5 * len(one.name)
        body = "\n".join([head, *legend, *self._parts])
        return (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' "
            f"role='img' aria-label='{escape(self._title, quote=True)}' {_FONT} "
            f"font-size='11.5' fill='{_INK}'>\n{body}\n</svg>"
        )


def _draw(frame: _Frame, series: Sequence[Series], colors: Sequence[str]) -> None:
    """Each series as marks with ranges, side by side within a category."""
    gap = min(16.0, frame.step / (len(series) + 1))
    for place, (one, color) in enumerate(zip(series, colors)):
        shift = (place - (len(series) - 1) / 2) * gap
        for index, value in enumerate(one.values):
            if value is None:
                continue
            x = frame.x(index) + shift
            low = one.lows[index] if one.lows else None
            high = one.highs[index] if one.highs else None
            if low is not None and high is not None:
                for y1, y2, half in (
                    (frame.y(low), frame.y(high), 0),
                    (frame.y(low), frame.y(low), 4),
                    (frame.y(high), frame.y(high), 4),
                ):
                    frame.add(
                        f"<line x1='{x - half:.1f}' y1='{y1:.1f}' x2='{x + half:.1f}' "
                        f"y2='{y2:.1f}' stroke='{color}' stroke-width='2'/>"
                    )
            frame.add(
                f"<circle cx='{x:.1f}' cy='{frame.y(value):.1f}' r='4' fill='{color}'/>"
            )


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers between two, some `about` of them."""
    span = high - low
    if span <= 0:
        return [low]
    step = 10.0 ** len(str(int(span)))
    while span / step < about:
        step /= 10
    for factor in (10, 5, 2):
        if span / (step * factor) >= about - 2:
            step *= factor
            break
    first = -(-low // step)
    count = int((high - first * step) // step)
    return [round((first + i) * step, 10) for i in range(count + 1)]


def number(value: float) -> str:
    """A number with as many digits as a reader needs."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"
