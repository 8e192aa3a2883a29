#!/usr/bin/env python3
"""Draws the table of `cargo bench --bench ingest -- scale` as an SVG.

  scripts/chart.py TABLE >benches/scale.svg
  scripts/chart.py TABLE --dark >benches/scale-dark.svg

It shows the rates from 2,000/s on: transactions pooled a second, and the CPU time of each. Pages choose between the two
files by the reader's colour scheme.
"""

import math
import re
import sys
from html import escape

# In the order and with the names of the README's table; told apart also by those who see fewer colours (Okabe and Ito).
NAMES = {
    "sequential, 2 worker threads": ("one at a time, 2 worker threads", "#d55e00"),
    "plain concurrent, 1 worker thread": ("plain concurrent, 1 worker thread", "#cc79a7"),
    "plain concurrent, 2 worker threads": ("plain concurrent, 2 worker threads", "#56b4e9"),
    "ours, hashes": ("ours, hashes (default of the library)", "#0072b2"),
    "ours, full objects": ("ours, full objects", "#009e73"),
}
# Background, text, grid and frame.
LIGHT, DARK = ("#ffffff", "#111111", "#dddddd", "#333333"), ("#0d1117", "#e6edf3", "#30363d", "#8b949e")
BACK, FRONT, GRID, FRAME = DARK if "--dark" in sys.argv else LIGHT
LEAST_RATE = 2_000
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 540, 380, 70, 40, 20, 50
LEGEND = 78


def read(path):
    """The rows below the head, as dictionaries; columns stand two spaces apart."""
    with open(path) as file:
        lines = file.read().splitlines()
    start = next(n for n, line in enumerate(lines) if line.strip().startswith("rate "))
    split = lambda line: re.split(r"\s{2,}", line.strip())
    rows = []
    for line in lines[start + 1:]:
        cells = split(line)
        if len(cells) < 5:
            break
        rows.append(dict(zip(split(lines[start]), cells)))
    return rows


def number(row, column):
    return float(row[column].rstrip("%"))


def short(value):
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:g}{unit}"
    return f"{value:g}"


def panel(x, y, title, across, points):
    """`points` are (name, across, up, filled); both axes are logarithmic."""
    spans = []
    for axis in (1, 2):
        values = [point[axis] for point in points]
        spans.append((math.log10(min(values) * 0.7), math.log10(max(values) * 1.5)))
    inner = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM)

    def place(axis, value):
        low, high = spans[axis]
        share = (math.log10(value) - low) / (high - low)
        return x + LEFT + share * inner[0] if axis == 0 else y + HEIGHT - BOTTOM - share * inner[1]

    left, right, top, bottom = x + LEFT, x + WIDTH - RIGHT, y + TOP, y + HEIGHT - BOTTOM
    print(f'<text x="{(left + right) / 2}" y="{y + 24}" text-anchor="middle" font-weight="bold">{escape(title)}</text>')
    for axis, (low, high) in enumerate(spans):
        decades = range(math.floor(low), math.ceil(high) + 1)
        ticks = [step * 10.0 ** decade for decade in decades for step in (1, 2, 5)]
        for value in ticks if axis else sorted({point[1] for point in points}):
            if not low <= math.log10(value) <= high:
                continue
            at = place(axis, value)
            line = (at, top, at, bottom) if axis == 0 else (left, at, right, at)
            print('<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="{}"/>'.format(*line, GRID))
            where = f'x="{at:.1f}" y="{bottom + 18}" text-anchor="middle"' if axis == 0 else \
                f'x="{left - 6}" y="{at + 4:.1f}" text-anchor="end"'
            print(f'<text {where} font-size="12">{short(value)}</text>')
    print(f'<rect x="{left}" y="{top}" width="{inner[0]}" height="{inner[1]}" fill="none" stroke="{FRAME}"/>')
    print(f'<text x="{(left + right) / 2}" y="{bottom + 38}" text-anchor="middle" font-size="13">{across}</text>')
    for name, (_, color) in NAMES.items():
        mine = [(place(0, a), place(1, b), filled) for of, a, b, filled in points if of == name]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b, _ in mine)
        print(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        for a, b, filled in mine:
            print(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4" stroke="{color}" stroke-width="2" fill="{color if filled else BACK}"/>')


def main():
    rows = [row for row in read(sys.argv[1]) if number(row, "rate") >= LEAST_RATE]

    def points(across, up):
        return [(row["contender"], number(row, across), number(row, up), row["held"] == "yes") for row in rows]

    whole, high = 2 * WIDTH, HEIGHT + LEGEND
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {high}" font-family="sans-serif" font-size="15" fill="{FRONT}">')
    print(f'<rect width="{whole}" height="{high}" rx="6" fill="{BACK}"/>')
    for index, (label, color) in enumerate(NAMES.values()):
        x, y = LEFT + index % 2 * WIDTH, 24 + index // 2 * 22
        print(f'<line x1="{x}" y1="{y}" x2="{x + 24}" y2="{y}" stroke="{color}" stroke-width="4"/>')
        print(f'<text x="{x + 32}" y="{y + 5}" font-size="14">{label}</text>')
    rate = "announced a second"
    panel(0, LEGEND, "pooled a second (filled: held)", rate, points("rate", "pooled/s"))
    panel(WIDTH, LEGEND, "CPU time per transaction, us", rate, points("rate", "CPU us/tx"))
    print("</svg>")


main()
