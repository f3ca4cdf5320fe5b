"""What lies behind and before a thing in a scene, drawn here: places, a plate, a pot, a scarf. And houses with painted doors.

    python3 tools/starter/layers.py DATA_FOLDER

Writes layers.bin and layers.json beside pack.bin. Each scene: words for it, the ground's colour, the layer behind, the layer
before, and where the thing stands (centre x, centre y, size).
"""

import io
import json
import pathlib
import random
import sys

import resvg_py
from PIL import Image


def circles(places, fill, opacity=1):
    return "".join(f'<circle cx="{x}" cy="{y}" r="{r}" fill="{fill}" fill-opacity="{opacity}"/>' for x, y, r in places)


def cloud(x, y, s, fill="#fff"):
    parts = [(0, 0, 14), (16, -8, 17), (34, -2, 14), (-14, 5, 9), (46, 5, 9)]
    body = circles([(x + a * s, y + b * s, r * s) for a, b, r in parts], fill)
    return body + f'<rect x="{x - 20 * s}" y="{y}" width="{73 * s}" height="{14 * s}" rx="{7 * s}" fill="{fill}"/>'


def star(x, y, r, fill="#ffe27a"):
    q = r * 0.3
    return f'<path d="M{x} {y - r}L{x + q} {y - q}L{x + r} {y}L{x + q} {y + q}L{x} {y + r}L{x - q} {y + q}L{x - r} {y}L{x - q} {y - q}Z" fill="{fill}"/>'


def waves(top, fill, light):
    out = ""
    for k, colour in ((0, light), (14, fill)):
        d = f"M-20 {top + k}" + "".join(f"q16 -12 32 0t32 0" for _ in range(5)) + "V260H-20Z"
        out += f'<path d="{d}" fill="{colour}"/>'
    return out


def streaks(rng, n, fill):
    out = ""
    for i in range(n):
        x, y = (i * 61 + rng.randint(0, 26)) % 256, (i * 37 + rng.randint(0, 20)) % 256
        out += f'<path d="M{x} {y}l-6 18" stroke="{fill}" stroke-width="4" stroke-linecap="round"/>'
    return out


RNG = random.Random(4)
STARS = "".join(star((i * 53 + 17) % 250, (i * 97 + 11) % 250, 3 + i % 4) for i in range(22))
FLAKES = circles([((i * 53 + 9) % 252, (i * 89 + 14) % 215, 3 + i % 3) for i in range(24)], "#ffffff")
PINES = "".join(
    f'<path d="M{x} {y}l26 60h-52z" fill="{c}"/><path d="M{x} {y + 34}l32 66h-64z" fill="{c}"/>'
    for x, y, c in ((20, 60, "#3f8f58"), (76, 38, "#4a9d63"), (132, 64, "#3f8f58"), (186, 36, "#4a9d63"), (240, 62, "#3f8f58"))
)
MOUNTAINS = '<path d="M-10 256L60 90L120 190L180 70L270 256Z" fill="#9aa9b8"/><path d="M60 90l-17 40l17 -8l14 10zM180 70l-18 36l16 -6l22 14z" fill="#fff"/>'
SKYLINE = "".join(
    f'<rect x="{x}" y="{y}" width="{w}" height="200" fill="{c}"/>'
    for x, y, w, c in ((0, 110, 44, "#aebdd0"), (40, 70, 36, "#9db0c6"), (80, 130, 40, "#b7c5d6"), (124, 60, 34, "#9db0c6"), (162, 104, 42, "#aebdd0"), (206, 82, 50, "#a4b5ca"))
)
RAINBOW = "".join(f'<circle cx="128" cy="215" r="{r}" fill="none" stroke="{c}" stroke-width="13"/>' for r, c in zip(range(190, 110, -13), ("#f24b4b", "#ff9d3b", "#ffe04a", "#5ccb6a", "#4a90f0", "#9a5fd6")))
ROUND = lambda y, fill: f'<ellipse cx="128" cy="{y + 130}" rx="210" ry="130" fill="{fill}"/>'  # noqa: E731
BAND = lambda y, fill: f'<rect x="-5" y="{y}" width="270" height="270" fill="{fill}"/>'  # noqa: E731

# words; ground; behind; before; centre x, centre y, size; which things it suits ("" all)
SCENES = [
    (["in the sky", "in a blue sky", "up in the air", "above the clouds", "among the clouds", "high in the sky"], "#a9d8fb", cloud(40, 60, 1) + cloud(180, 205, 1.1) + cloud(196, 44, 0.8) + cloud(30, 214, 0.8), "", (0.5, 0.5, 0.8), ""),
    (["at night", "under the night sky", "in the moonlight", "at midnight", "under the stars"], "#1b2350", STARS + '<path d="M224 20a26 26 0 1 0 16 42a22 22 0 1 1 -16 -42z" fill="#ffe9a8"/>', "", (0.5, 0.54, 0.82), ""),
    (["in space", "in outer space", "among the stars"], "#141433", STARS, "", (0.5, 0.5, 0.82), ""),
    (["in the dark", "on a dark background"], "#1d1f2b", "", "", (0.5, 0.5, 0.92), ""),
    (["in the sea", "in the ocean", "in the water", "in a lake", "swimming in the sea", "on the water", "on the sea"], "#dff1fb", "", waves(196, "#3f9be0", "#74bdf0"), (0.5, 0.5, 0.84), ""),
    (["by the sea", "at the sea", "near the ocean", "by the lake", "on the coast"], "#dff1fb", waves(190, "#3f9be0", "#74bdf0"), "", (0.5, 0.5, 0.88), ""),
    (["under water", "under the sea", "deep in the ocean", "at the bottom of the sea"], "#58b4e8", circles([(30, 60, 8), (46, 92, 5), (222, 40, 9), (206, 76, 5), (226, 190, 6), (28, 200, 6)], "#d8f1ff"), "", (0.5, 0.5, 0.84), ""),
    (["in the grass", "on a meadow", "in the garden", "in a green field", "on the lawn", "in a park", "on a farm"], "#d7efff", BAND(190, "#7cc860"), "", (0.5, 0.5, 0.86), ""),
    (["in the forest", "in the woods", "between trees", "in the jungle"], "#cfe8c8", PINES + BAND(196, "#6db55b"), "", (0.5, 0.52, 0.8), ""),
    (["in the desert", "in the sand", "in a hot desert", "on a sand dune"], "#fbe9c2", '<path d="M-5 200q60 -40 130 -8t140 -14V260H-5Z" fill="#ecc47c"/><path d="M-5 226q80 -30 150 -4t120 -10V260H-5Z" fill="#e0b264"/>', "", (0.5, 0.5, 0.86), ""),
    (["on the beach", "at the beach", "on a sandy beach"], "#d7efff", BAND(150, "#58b4e8") + '<path d="M-5 196q70 -18 140 0t130 -6V260H-5Z" fill="#f2d797"/>', "", (0.5, 0.5, 0.82), ""),
    (["in the snow", "in winter", "on snow", "on the ice", "in a snowy field"], "#c9e2f5", FLAKES + ROUND(198, "#ffffff"), "", (0.5, 0.5, 0.84), ""),
    (["in the rain", "in a storm", "on a rainy day"], "#d3dfea", streaks(RNG, 44, "#4c9be8"), "", (0.5, 0.5, 0.86), ""),
    (["on a hill", "on top of a hill", "on a green hill", "on the hill"], "#d7efff", ROUND(176, "#74c05c"), "", (0.5, 0.42, 0.72), ""),
    (["on a plate", "on a white plate", "on the plate"], "#ffffff", '<ellipse cx="128" cy="200" rx="122" ry="44" fill="#c3ccd9"/><ellipse cx="128" cy="196" rx="122" ry="42" fill="#e9eef5"/><ellipse cx="128" cy="196" rx="84" ry="25" fill="#d5dde8"/>', "", (0.5, 0.45, 0.68), "food"),
    (["on a table", "on a wooden table", "on the table", "on a desk", "on a shelf"], "#fbf3e6", BAND(192, "#b67a4b") + BAND(214, "#8f5c36"), "", (0.5, 0.44, 0.8), ""),
    (["in a pot", "in a flower pot", "in a brown pot"], "#ffffff", "", '<path d="M74 180h108l-14 66h-80z" fill="#c9683f"/><rect x="64" y="162" width="128" height="26" rx="6" fill="#dd7c50"/>', (0.5, 0.37, 0.66), "plant"),
    (["in a vase", "in a blue vase"], "#ffffff", "", '<path d="M96 150h64l-8 26q38 16 30 74h-108q-8 -58 30 -74z" fill="#3f86d8"/><rect x="88" y="144" width="80" height="14" rx="6" fill="#6aa7ea"/>', (0.5, 0.34, 0.6), "plant"),
    (["on the street", "on a road", "on the road"], "#eef1f5", BAND(196, "#7c828c") + "".join(f'<rect x="{x}" y="222" width="38" height="8" fill="#fff"/>' for x in range(-10, 260, 66)), "", (0.5, 0.5, 0.84), ""),
    (["in the city", "in a town", "in front of a city"], "#e3eefb", SKYLINE + BAND(206, "#8a919c"), "", (0.5, 0.54, 0.76), ""),
    (["in a room", "in the house", "on the floor", "indoors", "at home", "in the kitchen"], "#fdeed6", BAND(196, "#c99667"), "", (0.5, 0.48, 0.84), ""),
    (["at sunset", "in the evening", "at sunrise", "in the morning"], "#ffc48a", '<circle cx="128" cy="150" r="92" fill="#ffe08a"/>' + BAND(206, "#d8785a"), "", (0.5, 0.5, 0.82), ""),
    (["in the mountains", "in front of mountains", "near a mountain"], "#dcebf7", MOUNTAINS + BAND(214, "#7cc860"), "", (0.5, 0.56, 0.72), ""),
    (["on a cloud", "sitting on a cloud"], "#bfe1fb", "", cloud(86, 214, 2.4), (0.5, 0.42, 0.72), ""),
    (["under a rainbow", "in front of a rainbow", "with a rainbow behind it"], "#eaf5ff", RAINBOW, "", (0.5, 0.62, 0.6), ""),
    (["with hearts", "in love", "with little hearts"], "#ffe3ec", "".join(f'<path transform="translate({x} {y}) scale({s})" d="M0 6C-14 -8 -24 6 0 24C24 6 14 -8 0 6Z" fill="#f0567a"/>' for x, y, s in ((28, 30, 1), (226, 36, 1.2), (30, 206, 1.1), (228, 200, 0.9), (128, 6, 0.7))), "", (0.5, 0.53, 0.78), ""),
    (["in a box", "in a cardboard box"], "#ffffff", '<path d="M30 150h196v100h-196z" fill="#8a5a34"/>', '<path d="M30 172h196v80h-196z" fill="#c98f56"/><path d="M30 172l-22 -22h20l24 22zM226 172l22 -22h-20l-24 22z" fill="#b57c46"/>', (0.5, 0.42, 0.68), ""),
    (["on fire", "in flames", "breathing fire", "in the fire"], "#fff3e2", "", '<path d="M20 256q-14 -44 16 -70q4 26 18 30q-4 -40 22 -58q2 34 22 44q10 -22 4 -40q28 18 30 52q14 -8 12 -34q24 22 26 46q12 -8 10 -24q26 24 10 54z" fill="#ff7a2e" transform="translate(30 6)"/><path d="M60 256q-6 -24 14 -38q6 18 16 18q0 -26 18 -34q4 22 16 26q8 -12 6 -24q22 20 10 52z" fill="#ffd23e" transform="translate(30 4)"/>', (0.5, 0.46, 0.82), ""),
]  # fmt: skip

# Worn: drawn about its own centre, placed on a neck.
SCARF = (
    '<path d="M158 118l34 6l10 88l-34 6z" fill="#b3201f"/><path d="M166 206l36 -6l2 14l-36 8z" fill="#f6a09a"/>'
    '<path d="M26 92q102 44 204 0q16 26 2 48q-104 46 -208 0q-14 -22 2 -48z" fill="#e0302d"/>'
)
PLAIN_HAT = '<path d="M74 178l14 -120q40 -18 80 0l14 120z" fill="#e0302d"/><ellipse cx="128" cy="180" rx="114" ry="30" fill="#b3201f"/><path d="M77 156q51 26 102 0l3 24q-54 26 -108 0z" fill="#8d1413"/>'
KNIT_HAT = '<path d="M44 170q0 -110 84 -110t84 110z" fill="#e0302d"/><rect x="34" y="160" width="188" height="48" rx="24" fill="#f6a09a"/><circle cx="128" cy="50" r="26" fill="#f6a09a"/>'
PARTY_HAT = '<path d="M128 20l72 196q-72 26 -144 0z" fill="#e0302d"/><circle cx="128" cy="24" r="20" fill="#ffe04a"/><path d="M104 88l60 20l10 30l-84 -26zM84 146l106 36l6 22l-120 -34z" fill="#ffe04a"/>'
SPRITES = {"scarf": SCARF, "hat": PLAIN_HAT, "cap of wool": KNIT_HAT, "party hat": PARTY_HAT}

PAINT = {
    "red": "#e53a35", "blue": "#2f78d6", "green": "#3aa655", "yellow": "#f7cf3c", "white": "#f7f7f7", "purple": "#8a52c8",
    "pink": "#f59bc0", "orange": "#f5882b", "black": "#2c2c34", "brown": "#7a4a2e", "gray": "#9aa0a8",
}  # fmt: skip
WALL = PAINT | {"wooden": "#a8703f", "red": "#d2483f", "blue": "#6aa5e8", "green": "#86c87e", "yellow": "#f9dd77", "brown": "#9c6a45"}


def houses(body: str):
    """Houses in painted walls, doors and roofs, with what they are called."""
    rng, made = random.Random(8), []
    for wall in [""] * 5 + ["wooden"] * 12 + list(WALL) * 2:
        door, roof = rng.choice(list(PAINT)), rng.choice(["", "", *PAINT])
        svg = body.replace("#8c5543", PAINT[door])
        svg = svg.replace("#f3c07b", WALL[wall]) if wall else svg
        svg = svg.replace("#f8312f", PAINT[roof]) if roof else svg
        first = f"{wall} house" if wall else "house"
        parts = [f"{first} with a {door} door", f"{first} with a {door} front door"]
        if roof:
            parts += [f"{first} with a {roof} roof", f"{first} with a {roof} roof and a {door} door"]
        made.append((svg, parts))
    return made


def draw(body: str, view: str = "0 0 256 256") -> bytes:
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{view}" width="256" height="256">{body}</svg>'
    image = Image.open(io.BytesIO(bytes(resvg_py.svg_to_bytes(svg_string=svg, width=512, height=512)))).convert("RGBA")
    out = io.BytesIO()
    image.resize((256, 256), Image.LANCZOS).save(out, "WEBP", lossless=True, quality=60, method=3)
    return out.getvalue()


def rgb(text: str) -> list[int]:
    return [int(text[i : i + 2], 16) for i in (1, 3, 5)]


def main() -> None:
    data = pathlib.Path(sys.argv[1])
    blob, index = bytearray(), []

    def put(body, view="0 0 256 256"):
        made = draw(body, view)
        index.append([len(blob), len(made)])
        blob.extend(made)
        return len(index) - 1

    scenes = [
        {"words": words, "ground": rgb(ground), "behind": put(behind) if behind else -1, "before": put(before) if before else -1, "at": at, "for": suits}
        for words, ground, behind, before, at, suits in SCENES
    ]
    sprites = {name: put(body) for name, body in SPRITES.items()}
    icons = json.loads((data / "iconify-json-fluent-emoji-flat/package/icons.json").read_text())
    painted = [{"picture": put(svg, "-0.5 -0.5 33 33"), "words": words} for svg, words in houses(icons["icons"]["house"]["body"])]
    (data / "layers.bin").write_bytes(blob)
    (data / "layers.json").write_text(json.dumps({"index": index, "scenes": scenes, "sprites": sprites, "houses": painted}))
    print(len(index), "layers,", len(blob), "bytes")


if __name__ == "__main__":
    main()
