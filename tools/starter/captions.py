"""Recipes: what a training picture shows, and in which words. Deterministic for a seed."""

import pathlib
import random

from roster import ALSO_SAY, CALLED, KEEP, MAIN, OWNER, SELDOM
from words import COLOURS, COUNTS, DOING, PARTS, SCENES, SYNONYMS, article, plural

# Stands for any word the model was never shown; see `unknown` below. The id of a token no caption has.
UNKNOWN = "\u00a4"
CAN_BE_RECOLOURED = {"Objects", "Travel & Places", "Food & Drink", "Animals & Nature", "Activities"}
SHAPES = {"heart", "circle", "square", "triangle", "broken heart", "right arrow", "up arrow"}
WEIGHTS = {"Smileys & Emotion": 0.7, "Symbols": 0.6, "People & Body": 0.7}
# Other words for a colour; the last three only of things that are made by somebody.
ALSO = {"gray": ["grey"], "purple": ["violet"], "yellow": ["golden"]}
MADE = {"gray": "silver", "brown": "wooden", "yellow": "gold"}
FILLERS = (
    "cute beautiful nice lovely pretty single simple colourful cool funny happy friendly old new fluffy shiny fresh sleepy"
    " little small big magic burning hot cold sitting flying running standing wild young full open modern"
).split()
FRAMES = [
    "a picture of {}", "a picture of {}", "an emoji of {}", "an icon of {}", "a drawing of {}", "an illustration of {}",
    "a cartoon of {}", "an image of {}", "clip art of {}", "a painting of {}", "a photo of {}", "show me {}", "{} alone",
    "draw {}", "{}, flat", "{}, flat design", "{}, minimal", "{}, cartoon style",
]  # fmt: skip
HELD_OUT = {line.strip() for line in (pathlib.Path(__file__).parent / "prompts.txt").read_text().splitlines()}


def coloured(name: str) -> bool:
    return any(c in name.split() for c in [*COLOURS, "grey", "golden", "gold", "violet"])


def plain(name: str) -> str:
    return name.replace("-", " ").replace("womans ", "").replace("mans ", "")


def chosen(index: list[dict]) -> list[dict]:
    """The pictures that are used: one for each thing of the roster, with all that it may be called, the usual word first."""
    rank = {"flat": 0, "noto": 1, "soft": 2, "3d": 3}
    best: dict[str, dict] = {}
    for entry in index:
        key = entry["icon"]
        if key not in best or rank[entry["set"]] < rank[best[key]["set"]]:
            best[key] = entry
    taken = {CALLED.get(name, plain(name)): name for name in KEEP} | OWNER
    things = []
    for name in KEEP:
        words = [CALLED.get(name, plain(name))]
        for word in [*SYNONYMS.get(name, []), *ALSO_SAY.get(name, []), *(w for w, n in OWNER.items() if n == name)]:
            if taken.setdefault(word, name) == name and word not in words:
                words.append(word)
        # Keywords of emojilib that no other thing has.
        keys = [key for key in best[name]["keys"] if taken.setdefault(key, name) == name and key not in words]
        main = {"hue": MAIN[name], "share": 0.6, "colour": ""} if name in MAIN else {}
        things.append(best[name] | main | {"say": words, "keys": keys[:4]})
    return things


class Recipes:
    """Draws recipes from the chosen pictures."""

    def __init__(self, things: list[dict], seed: int) -> None:
        self.index = things
        self.random = random.Random(seed)
        often = [0.3 if t["icon"] in SELDOM else 1.0 for t in things]
        self.weights = [n * WEIGHTS.get(t["category"], 1.0) for n, t in zip(often, things)]
        whole = ("Objects", "Food & Drink", "Animals & Nature", "Activities", "Travel & Places")
        fits = [t["category"] in whole and len(t["say"][0].split()) <= 2 or t["say"][0] in SHAPES for t in things]
        self.simple = [n * f for n, f in zip(often, fits)]

    def thing(self, simple: bool, want_colour: float) -> tuple[int, int, str]:
        """A picture, the colour it is to get (-1: its own), and what to call it, colour included."""
        r = self.random
        pick = r.choices(range(len(self.index)), self.simple if simple else self.weights)[0]
        entry = self.index[pick]
        name = entry["say"][0] if r.random() < 0.55 else r.choice(entry["say"])
        if entry["keys"] and not simple and r.random() < 0.06:
            name = r.choice(entry["keys"])
        free = [n for n in entry["say"] if not coloured(n)]
        can = (entry["category"] in CAN_BE_RECOLOURED and entry["share"] >= 0.35 or entry["say"][0] in SHAPES) and free
        if can and r.random() < want_colour:
            target = r.choices(range(len(COLOURS)), [5, 3, 4, 5, 5, 4, 4, 3, 3, 3, 2])[0]
            word = COLOURS[target]
            also = ALSO.get(word, []) + ([MADE[word]] if word in MADE and entry["category"] in ("Objects", "Travel & Places") else [])
            word = r.choice([word, word, *also])
            name = free[0] if r.random() < 0.6 else r.choice(free)
            own = COLOURS[target] == entry["colour"]
            return pick, -1 if own else target, f"{word} {name}"
        if not coloured(name) and entry["share"] > 0.5 and entry["colour"] and r.random() < 0.3:
            name = f"{entry['colour']} {name}"
        return pick, -1, name

    def unknown(self, text: str) -> str:
        """Now and then a word the model does not know, so that it learns to pass over such words."""
        r = self.random
        roll = r.random()
        some = " ".join([UNKNOWN] * r.randint(1, 4))
        if roll < 0.04:
            return f"{text}, {some}"
        if roll < 0.06:
            return f"{some} {text}"
        if roll < 0.10 and text.startswith("a "):
            return f"a {UNKNOWN} {text[2:]}"
        if roll < 0.13:
            return f"{text} {r.choice(['in', 'on', 'with', 'at'])} a {UNKNOWN}"
        return text

    def draw(self) -> dict:
        """items: (picture, centre x, centre y, size, colour or -1); background: -1 white, -2 pale, or a colour or scene."""
        while True:
            recipe = self.attempt()
            if recipe["caption"] not in HELD_OUT:
                recipe["caption"] = self.unknown(recipe["caption"])
                return recipe

    def attempt(self) -> dict:
        r = self.random
        background, behind = -1, ""
        roll = r.random()
        if roll < 0.05:
            background = r.randrange(len(COLOURS))
            behind = r.choice([" on a {} background", ", {} background", " with a {} background", " on {}"]).format(COLOURS[background])
        elif roll < 0.08:
            behind = r.choice([" on a white background", ", white background", ", plain background"])
        elif roll < 0.18:
            scene = r.randrange(len(SCENES))
            ground, words = SCENES[scene]
            background = -1 if ground is None else len(COLOURS) + scene
            behind = " " + r.choice(words)
        kind = r.random()
        if kind < 0.80:
            items, text = self.one()
        elif kind < 0.88:
            items, text = self.several()
        else:
            items, text = self.two()
        white = any((COLOURS[item[4]] if item[4] >= 0 else self.index[item[0]]["colour"]) == "white" for item in items)
        if background == -1 and not behind and white:
            background = -2
        return {"items": items, "background": background, "caption": text + behind}

    def one(self):
        r = self.random
        pick, colour, name = self.thing(False, 0.33)
        size, roll = r.uniform(0.9, 1.02), r.random()
        if roll < 0.03:
            size, name = r.uniform(0.72, 0.82), r.choice(["small ", "tiny ", "little "]) + name
        elif roll < 0.06:
            size, name = r.uniform(1.0, 1.05), r.choice(["big ", "large ", "huge "]) + name
        elif roll < 0.20:
            name = f"{r.choice(FILLERS)} {name}"
        slack = max(0.0, (1 - size * 0.91) / 2)
        x, y = 0.5 + r.uniform(-slack, slack) * 0.6, 0.5 + r.uniform(-slack, slack) * 0.6
        roll = r.random()
        if roll < 0.68:
            text = article(name)
        elif roll < 0.82:
            text = name
        elif roll < 0.86:
            text = f"the {name}"
        else:
            text = r.choice(FRAMES).format(article(name))
        roll = r.random()
        if roll < 0.07:
            text = f"{text} with {r.choice(PARTS).replace('*', r.choice(COLOURS))}"
        elif roll < 0.11:
            text = f"{text} {r.choice(DOING)}"
        return [(pick, x, y, size, colour)], text

    def several(self):
        r = self.random
        pick, colour, name = self.thing(True, 0.45)
        count = r.choices([2, 3, 4], [6, 3, 1])[0]
        places = {
            2: [(0.26, 0.5, 0.53), (0.74, 0.5, 0.53)],
            3: [(0.5, 0.28, 0.47), (0.25, 0.73, 0.47), (0.75, 0.73, 0.47)],
            4: [(0.27, 0.27, 0.46), (0.73, 0.27, 0.46), (0.27, 0.73, 0.46), (0.73, 0.73, 0.46)],
        }[count]
        text = f"{COUNTS[count]} {plural(name)}"
        if count == 2 and r.random() < 0.2:
            text = f"a pair of {plural(name)}"
        return [(pick, *place, colour) for place in places], text

    def two(self):
        r = self.random
        (first, first_colour, a), (second, second_colour, b) = self.thing(True, 0.3), self.thing(True, 0.3)
        a, b = article(a), article(b)
        size = r.uniform(0.49, 0.53)
        roll = r.random()
        if roll < 0.34:
            places = [(0.5, 0.26, size), (0.5, 0.75, size)]
            text = f"{a} {r.choice(['over', 'above', 'on top of', 'on', 'flying over'])} {b}"
        elif roll < 0.42:
            places = [(0.5, 0.75, size), (0.5, 0.26, size)]
            text = f"{a} {r.choice(['under', 'below', 'beneath'])} {b}"
        else:
            places = [(0.26, 0.5, size), (0.74, 0.5, size)]
            text = f"{a} {r.choice(['and', 'and', 'next to', 'beside', 'together with', 'near'])} {b}"
        items = [(first, *places[0], first_colour), (second, *places[1], second_colour)]
        return items, text
