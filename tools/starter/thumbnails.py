"""Writes what the model is taught in eight by eight pixels each, for the tests.

    python3 tools/starter/thumbnails.py DATA_FOLDER tests/tests/it/starter-things.txt

A thing has a line for each of its drawings in the flat and the shaded set: its name, and the pixels of its bounding square
on white, in hexadecimal digits.
"""

import io
import json
import pathlib
import sys

from PIL import Image

import captions
from roster import SELDOM


def thumbnail(picture: Image.Image) -> bytes:
    box = picture.getchannel("A").point(lambda a: 255 if a > 8 else 0).getbbox()
    picture = picture.crop(box)
    side = max(picture.size)
    square = Image.new("RGBA", (side, side), "white")
    square.alpha_composite(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
    return square.convert("RGB").resize((8, 8), Image.BOX).tobytes()


def main() -> None:
    data, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    index, blob = json.loads((data / "pack.json").read_text()), (data / "pack.bin").read_bytes()
    pictures, things = captions.chosen(index)
    lines = []
    for thing in things:
        if thing["often"] <= 0.25 or thing["icon"] in SELDOM:
            continue
        for entry in (pictures[number] for number in thing["pictures"]):
            if entry["set"] != "soft":
                picture = Image.open(io.BytesIO(blob[entry["at"] : entry["at"] + entry["size"]])).convert("RGBA")
                lines.append(f"{thing['say'][0]}\t{thumbnail(picture).hex()}\n")
    target.write_text("".join(lines))


if __name__ == "__main__":
    main()
