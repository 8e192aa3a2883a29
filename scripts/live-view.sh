#!/usr/bin/env bash
# Makes docs/live-view.svg: the example `ingest` in a terminal of 100 columns and 30 lines (tmux), after a while.
#
#   scripts/live-view.sh [SECONDS] [FLAG...]     by default 70 s of a mock node without faults
#   OUT=FILE EXAMPLES=target/debug/examples scripts/live-view.sh 20 --tps 100
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:-70}
shift || true
[ $# -gt 0 ] || set -- --tps 500 --blobs-per-mille 5 --preload 2000 --block-time 12s --rpc 127.0.0.1:0
out=${OUT:-docs/live-view.svg}
examples=${EXAMPLES:-${CARGO_TARGET_DIR:-target}/release/examples}
[ -n "${EXAMPLES:-}" ] || cargo build --quiet --release --example ingest

session=live-view-$$
trap 'tmux kill-session -t "$session" 2>/dev/null; rm -f "$out.tmp"' EXIT
tmux new-session -d -s "$session" -x 100 -y 30 "$examples/ingest $*"
sleep "$seconds"
tmux capture-pane -e -p -t "$session" | python3 -c '
import html, re, sys

NAMES = ["#15161e", "#f7768e", "#9ece6a", "#e0af68", "#3d59a1", "#bb9af7", "#7dcfff", "#c0caf5"]
BRIGHT = ["#565f89"] + NAMES[1:7] + ["#ffffff"]
FRONT, BACK, WIDTH, HEIGHT = "#c0caf5", "#1a1b26", 8.4, 18
COLUMNS, LINES = 100, 30



def cells(line):
    """Each character of a line with its colours and weight."""
    front, back, bold = FRONT, None, False
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        if not part.startswith("\x1b"):
            yield from ((c, front, back, bold) for c in re.sub(r"\x1b.|[\x0e\x0f]", "", part))
            continue
        codes = [int(code or 0) for code in part[2:-1].split(";")]
        while codes:
            code = codes.pop(0)
            if code in (38, 48) and codes[0] == 5 and codes[1] < 16:
                # One of the sixteen colours, by its number.
                _, number = codes.pop(0), codes.pop(0)
                chosen = (NAMES + BRIGHT)[number]
                front, back = (chosen, back) if code == 38 else (front, chosen)
            elif code == 0:
                front, back, bold = FRONT, None, False
            elif code in (1, 22):
                bold = code == 1
            elif 30 <= code <= 37:
                front = NAMES[code - 30]
            elif 90 <= code <= 97:
                front = BRIGHT[code - 90]
            elif 40 <= code <= 47:
                back = NAMES[code - 40]
            elif code == 39:
                front = FRONT
            elif code == 49:
                back = None
            else:
                sys.exit(f"a colour that is not known: {part!r}")


lines = sys.stdin.read().split("\n")[:LINES]
print(f"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {COLUMNS * WIDTH + 20:.0f} {LINES * HEIGHT + 20}\">")
print(f"<rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"{BACK}\"/>")
print("<g font-family=\"ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace\" font-size=\"14\" xml:space=\"preserve\">")
for row, line in enumerate(lines):
    runs = []
    for column, (c, *style) in enumerate(cells(line)):
        if runs and runs[-1][2] == style:
            runs[-1][1] += c
        else:
            runs.append([column, c, style])
    for column, text, (front, back, bold) in runs:
        x, y, width = 10 + column * WIDTH, 10 + row * HEIGHT, len(text) * WIDTH
        if back:
            print(f"<rect x=\"{x:.1f}\" y=\"{y}\" width=\"{width:.1f}\" height=\"{HEIGHT}\" fill=\"{back}\"/>")
        if text.strip():
            weight = " font-weight=\"bold\"" if bold else ""
            print(f"<text x=\"{x:.1f}\" y=\"{y + 14}\" textLength=\"{width:.1f}\" fill=\"{front}\"{weight}>{html.escape(text)}</text>")
print("</g>\n</svg>")
' >"$out.tmp"
mv "$out.tmp" "$out"
echo "$out: $(wc -c <"$out") bytes"
