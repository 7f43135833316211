#!/usr/bin/env python3
"""Draws training_step.svg from the numbers in training_step.json, which lie beside this file.

    docs/assets/training_step.py [--check]

--check draws nothing: it fails if the picture is not that of the numbers.
"""

import html
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
WIDTH, MARGIN, NAMES, ROW, BAR = 860, 24, 160, 26, 16
HEADER, TITLE, FOOTER = 70, 30, 34

# A background of its own in both schemes: the page's may be dark where the reader's system is not.
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .title { font-weight: 600; font-size: 16px }
  .model { font-weight: 600 }
  .note { font-size: 12px; fill: #59636e }
  .page { fill: #ffffff; stroke: #d1d9e0 }
  .alone { fill: #afb8c1 }
  .peer { fill: #6e7781 }
  .ours { fill: #d1481c }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .note { fill: #9198a1 }
    .page { fill: #0d1117; stroke: #3d444d }
    .alone { fill: #484f58 }
    .peer { fill: #8b949e }
    .ours { fill: #f0883e }
  }
"""


def text(x, y, words, kind=""):
    label = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{label}>{html.escape(words)}</text>'


def bar(x, y, width, kind):
    return f'<rect x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{BAR}" class="{kind}"/>'


def panel(numbers, model, top):
    """One model: a row for each way to train it, the longest as wide as there is room."""
    alone = numbers["alone"][model]
    room = WIDTH - 2 * MARGIN - NAMES - 130
    scale = room / max(way["step"][model] for way in numbers["ways"])
    parts = [text(MARGIN, top + 18, numbers["models"][model], "model")]
    for row, way in enumerate(numbers["ways"]):
        y = top + TITLE + row * ROW
        step, added = way["step"][model], way["added"][model]
        left = MARGIN + NAMES
        kind = "ours" if "rueda" in way["name"].lower() else "peer"
        label = f"{step:g} {numbers['unit']} (+{added:g})"
        parts += [
            text(MARGIN, y + 13, way["name"]),
            bar(left, y, alone * scale, "alone"),
            bar(left + alone * scale, y, (step - alone) * scale, kind),
            text(round(left + step * scale + 8, 1), y + 13, label),
        ]
    return parts


def picture(numbers):
    height_of_panel = TITLE + len(numbers["ways"]) * ROW + 12
    height = HEADER + len(numbers["models"]) * height_of_panel + FOOTER
    parts = [
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6" class="page"/>',
        text(MARGIN, 32, "Time of a training step, and what communication adds to it", "title"),
        bar(MARGIN, 43, 16, "alone"),
        text(MARGIN + 22, 56, "without communication", "note"),
        bar(MARGIN + 182, 43, 16, "ours"),
        text(MARGIN + 204, 56, "added by Rueda", "note"),
        bar(MARGIN + 312, 43, 16, "peer"),
        text(MARGIN + 334, 56, "added by others", "note"),
    ]
    for model in range(len(numbers["models"])):
        parts += panel(numbers, model, HEADER + model * height_of_panel)
    note = f"{numbers['machine']}. {numbers['date']}, {numbers['source']}"
    parts.append(text(MARGIN, height - 16, note, "note"))
    lines = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="Time of a training step">\n<style>{STYLE}</style>\n{lines}\n</svg>\n'
    )


def main(arguments):
    if arguments not in ([], ["--check"]):
        sys.exit(__doc__)
    drawn = picture(json.loads((HERE / "training_step.json").read_text(encoding="utf-8")))
    place = HERE / "training_step.svg"
    if not arguments:
        place.write_text(drawn, encoding="utf-8")
    elif not place.exists() or place.read_text(encoding="utf-8") != drawn:
        sys.exit(f"{place.name} is not that of the numbers: run docs/assets/training_step.py")


if __name__ == "__main__":
    main(sys.argv[1:])
