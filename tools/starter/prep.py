"""Fetches the picture sets from npm and packs them: every picture at 256x256 with its alpha, and what it is called.

    pip install resvg-py pillow numpy
    python3 tools/starter/prep.py WORK_FOLDER

Writes pack.bin (WebP pictures, one after another) and pack.json (where each one is, its names, its set, its main colour).
The same packages give the same files: nothing here is random, versions are pinned, order is fixed.
"""

import colorsys
import io
import json
import pathlib
import subprocess
import sys
import tarfile
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import resvg_py
from PIL import Image

from words import LEAVE_OUT, PEOPLE, SELDOM, SYMBOLS, SYNONYMS, VAGUE

SIZE = 256
# Package, version, the set's short name, licence.
SETS = [
    ("@iconify-json/noto", "1.2.9", "noto", "Apache-2.0"),
    ("@iconify-json/fluent-emoji-flat", "1.2.6", "flat", "MIT"),
    ("@iconify-json/fluent-emoji", "1.2.7", "soft", "MIT"),
    ("emojilib", "4.0.3", "words", "MIT"),
]


def fetch(work: pathlib.Path, package: str, version: str) -> pathlib.Path:
    """Unpacks one npm package and gives its folder."""
    folder = work / package.replace("@", "").replace("/", "-")
    if not (folder / "package").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", f"{package}@{version}", "--pack-destination", str(folder), "--silent"]
        name = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip().splitlines()[-1]
        with tarfile.open(folder / name) as tar:
            tar.extractall(folder, filter="data")
    return folder / "package"


def wanted(name: str, category: str) -> bool:
    if LEAVE_OUT.search(name) or SELDOM.search(name) or category == "Flags":
        return False
    if category == "People & Body":
        return name in PEOPLE
    if category == "Symbols":
        return name in SYMBOLS
    return True


def colour_of(rgba: np.ndarray) -> tuple[str, float, float]:
    """The main colour: its name ("" where there is none), its hue in degrees (-1: a grey), its share of the object."""
    solid = rgba[rgba[..., 3] > 200][:, :3].astype(np.float32) / 255
    if len(solid) < 200:
        return "", -1, 0
    step = max(1, len(solid) // 4000)
    hsv = np.array([colorsys.rgb_to_hsv(*p) for p in solid[::step]])
    h, s, v = hsv[:, 0] * 360, hsv[:, 1], hsv[:, 2]
    names = np.full(len(hsv), "gray ", dtype="<U6")
    grey = (s < 0.18) | (v < 0.13)
    names[grey & (v > 0.85)] = "white"
    names[grey & (v < 0.33)] = "black"
    names[~grey] = "red"
    hues = [(17, 36, "orange"), (36, 68, "yellow"), (68, 165, "green"), (165, 255, "blue"), (255, 300, "purple"), (300, 345, "pink")]
    for low, high, name in hues:
        names[~grey & (h >= low) & (h < high)] = name
    names[~grey & ((h < 17) | (h >= 345)) & (s < 0.55) & (v > 0.8)] = "pink"
    names[~grey & (h >= 8) & (h < 42) & ((v < 0.72) | (s < 0.62) & (v < 0.86))] = "brown"
    names[~grey & (v < 0.25)] = "black"
    values, counts = np.unique(np.char.strip(names), return_counts=True)
    best = int(np.argmax(counts))
    name, share = str(values[best]), float(counts[best] / len(hsv))
    pick = np.char.strip(names) == name
    if name in ("white", "black", "gray"):
        return name, -1, share
    angle = np.angle(np.mean(np.exp(1j * np.radians(h[pick]))))
    return name, float(np.degrees(angle) % 360), share


def finish(image: Image.Image, entry: dict) -> tuple[bytes, dict] | None:
    """Trims, centres and packs one picture."""
    box = image.getchannel("A").point(lambda a: 255 if a > 8 else 0).getbbox()
    if box is None or (box[2] - box[0]) * (box[3] - box[1]) < 900:
        return None
    image = image.crop(box)
    scale = 232 / max(image.size)
    image = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))), Image.LANCZOS)
    whole = Image.new("RGBA", (SIZE, SIZE))
    whole.paste(image, ((SIZE - image.width) // 2, (SIZE - image.height) // 2))
    out = io.BytesIO()
    whole.save(out, "WEBP", lossless=True, quality=60, method=3)
    colour, hue, share = colour_of(np.asarray(Image.open(out).convert("RGBA")))
    return out.getvalue(), entry | {"colour": colour, "hue": round(hue, 1), "share": round(share, 3)}


def vector(task) -> tuple[bytes, dict] | None:
    svg, entry = task
    try:
        # Twice the size first: trimming then shrinks, which is sharper than enlarging.
        png = bytes(resvg_py.svg_to_bytes(svg_string=svg, width=512, height=512))
    except ValueError:
        return None
    return finish(Image.open(io.BytesIO(png)).convert("RGBA"), entry)


def words_for(name: str, keywords: list[str], popularity: dict[str, int]) -> dict:
    """What a picture may be called: its name, everyday words, and keywords that few others have."""
    plain = name.replace("-", " ").replace("womans ", "").replace("mans ", "")
    for word in ("tilted left", "tilted right", "showing americas", "showing asia australia", "showing europe africa"):
        plain = plain.replace(" " + word, "")
    say = SYNONYMS.get(name, [])
    keys = []
    for key in keywords:
        key = key.replace("_", " ").strip().lower()
        fits = key.replace(" ", "").isalpha() and 2 < len(key) < 22 and key not in VAGUE
        if fits and popularity.get(key, 0) <= 3 and key != plain and key not in say:
            keys.append(key)
    return {"name": plain, "say": say, "keys": keys[:6]}


def main() -> None:
    work = pathlib.Path(sys.argv[1])
    work.mkdir(parents=True, exist_ok=True)
    folders = {short: fetch(work, package, version) for package, version, short, _ in SETS}
    library = json.loads((folders["words"] / "dist/emoji-en-US.json").read_text())
    library = {e.replace("\ufe0f", ""): w for e, w in library.items()}
    popularity: dict[str, int] = {}
    for keys in library.values():
        for key in {k.replace("_", " ").lower() for k in keys}:
            popularity[key] = popularity.get(key, 0) + 1

    categories: dict[str, str] = {}
    for short in ("flat", "noto"):
        listed = json.loads((folders[short] / "metadata.json").read_text())["categories"]
        categories |= {name: category for category, names in listed.items() for name in names}
    tasks, names_by_code = [], {}
    for short in ("noto", "flat", "soft"):
        icons = json.loads((folders[short] / "icons.json").read_text())
        codes: dict[str, str] = {}
        for code, icon in json.loads((folders[short] / "chars.json").read_text()).items():
            codes.setdefault(icon, code)
        for name in sorted(icons["icons"]):
            category = categories.get(name, "")
            if not category or not wanted(name, category):
                continue
            code = codes.get(name, "").replace("-fe0f", "")
            emoji = "".join(chr(int(c, 16)) for c in code.split("-")) if code else ""
            entry = {"icon": name, "set": short, "category": category} | words_for(name, library.get(emoji, []), popularity)
            names_by_code.setdefault(code, entry)
            icon = icons["icons"][name]
            w = icon.get("width", icons.get("width", 16))
            h = icon.get("height", icons.get("height", w))
            head = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
            svg = f'{head} viewBox="{icon.get("left", 0)} {icon.get("top", 0)} {w} {h}" width="{w}" height="{h}">{icon["body"]}</svg>'
            tasks.append((vector, (svg, entry)))

    blob, index = bytearray(), []
    with ProcessPoolExecutor() as pool:
        for made in pool.map(run, tasks, chunksize=32):
            if made:
                data, entry = made
                index.append(entry | {"at": len(blob), "size": len(data)})
                blob += data
    (work / "pack.bin").write_bytes(blob)
    (work / "pack.json").write_text(json.dumps(index))
    print(len(index), "pictures,", len({e["name"] for e in index}), "names,", round(len(blob) / 1e6, 1), "MB")


def run(task):
    return task[0](task[1])


if __name__ == "__main__":
    main()
