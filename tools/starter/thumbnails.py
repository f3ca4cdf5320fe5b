"""Writes what the model is taught in eight by eight pixels each, for the tests.

    python3 tools/starter/thumbnails.py DATA_FOLDER tests/tests/it/starter-things.txt
"""

import json
import pathlib
import sys

import torch.nn.functional as F

import captions
from compose import Studio
from roster import SELDOM


def main() -> None:
    data, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    index = json.loads((data / "pack.json").read_text())
    things = [thing for thing in captions.chosen(index) if thing["icon"] not in SELDOM]
    studio = Studio(things, (data / "pack.bin").read_bytes(), "cpu")
    lines = []
    for i, thing in enumerate(things):
        ground = -2 if thing["colour"] == "white" else -1
        picture = studio.make([{"items": [(i, 0.5, 0.5, 0.96, -1)], "background": ground}])[0]
        small = (F.avg_pool2d(picture, 32) * 127.5 + 127.5).round().byte().permute(1, 2, 0)
        lines.append(f"{thing['say'][0]}\t{bytes(small.flatten().tolist()).hex()}\n")
    target.write_text("".join(lines))


if __name__ == "__main__":
    main()
