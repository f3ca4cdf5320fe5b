"""Recipes: what a training picture shows, and in which words. Deterministic for a seed."""

import pathlib
import random

from words import COLOURS, COUNTS, SYNONYMS, article, plural  # noqa: F401

# Stands for any word the model was never shown; see `unknown` below. The id of a token no caption has.
UNKNOWN = "\u00a4"
CAN_BE_RECOLOURED = {"Objects", "Travel & Places", "Food & Drink", "Animals & Nature", "Activities"}
WEIGHTS = {"Smileys & Emotion": 0.25, "Symbols": 0.5, "People & Body": 0.6}
ALSO = {"gray": ["grey"], "purple": ["violet"], "yellow": ["golden"]}
FILLERS = ["cute", "beautiful", "nice", "lovely", "pretty", "single", "simple", "colourful", "cool", "funny"]
FRAMES = [
    "a picture of {}", "a picture of {}", "an emoji of {}", "an icon of {}", "a drawing of {}", "an illustration of {}",
    "a cartoon of {}", "an image of {}", "clip art of {}", "a painting of {}", "a photo of {}", "show me {}", "{} alone",
]  # fmt: skip
STYLES = {
    "3d": [", 3d", ", 3d render", ", 3d icon", ", shiny 3d", " in 3d"],
    "flat": [", flat", ", flat design", ", flat icon", ", minimal"],
    "soft": [", soft shading", ", smooth colours", ", gradient"],
    "noto": [", cartoon", ", cartoon style", ", emoji style"],
}
HELD_OUT = {line.strip() for line in (pathlib.Path(__file__).parent / "prompts.txt").read_text().splitlines()}


def coloured(name: str) -> bool:
    return any(c in name.split() for c in [*COLOURS, "grey", "golden", "gold", "violet"])


class Recipes:
    """Draws recipes from the packed pictures' index."""

    def __init__(self, index: list[dict], seed: int) -> None:
        self.index = index
        self.random = random.Random(seed)
        # By name first, so that a thing in four sets is not four times as frequent as one in one set.
        self.things: dict[str, list[int]] = {}
        for i, entry in enumerate(index):
            self.things.setdefault(entry["name"], []).append(i)
        self.names = sorted(self.things)
        self.weights = [
            WEIGHTS.get(index[self.things[n][0]]["category"], 1.0) * (2.0 if n.replace(" ", "-") in SYNONYMS else 1.0)
            for n in self.names
        ]
        whole = ("Objects", "Food & Drink", "Animals & Nature", "Activities", "Travel & Places")
        self.simple = [n for n in self.names if len(n.split()) <= 2 and index[self.things[n][0]]["category"] in whole]
        self.simple_weights = [3.0 if n.replace(" ", "-") in SYNONYMS or " " not in n else 1.0 for n in self.simple]

    def thing(self, simple: bool, want_colour: float) -> tuple[int, int, str]:
        """A picture, the colour it is to get (-1: its own), and what to call it, colour included."""
        r = self.random
        names, weights = (self.simple, self.simple_weights) if simple else (self.names, self.weights)
        pick = r.choice(self.things[r.choices(names, weights)[0]])
        entry = self.index[pick]
        roll = r.random()
        if entry["say"] and roll < 0.5:
            name = r.choice(entry["say"])
        elif entry["keys"] and roll > 0.91 and not simple:
            name = r.choice(entry["keys"])
        else:
            name = entry["name"]
        free = [n for n in [entry["name"], *entry["say"]] if not coloured(n)]
        can = entry["category"] in CAN_BE_RECOLOURED and entry["share"] >= 0.35 and free
        if can and r.random() < want_colour:
            target = r.choices(range(len(COLOURS)), [5, 3, 4, 5, 5, 4, 4, 2, 3, 2, 2])[0]
            word = COLOURS[target]
            word = r.choice([word, word, *ALSO.get(word, [])])
            name = r.choice(free)
            own = COLOURS[target] == entry["colour"]
            return pick, -1 if own else target, f"{word} {name}"
        if not coloured(name) and entry["share"] > 0.5 and entry["colour"] and r.random() < 0.4:
            name = f"{entry['colour']} {name}"
        return pick, -1, name

    def unknown(self, text: str) -> str:
        """Now and then a word the model does not know, so that it learns to pass over such words."""
        r = self.random
        roll = r.random()
        some = " ".join([UNKNOWN] * r.randint(1, 4))
        if roll < 0.05:
            return f"{text}, {some}"
        if roll < 0.08:
            return f"{some} {text}"
        if roll < 0.12 and text.startswith("a "):
            return f"a {UNKNOWN} {text[2:]}"
        return text

    def draw(self) -> dict:
        """items: (picture, centre x, centre y, size, mirrored, colour or -1); background: -1 white, or a colour."""
        while True:
            recipe = self.attempt()
            if recipe["caption"] not in HELD_OUT:
                recipe["caption"] = self.unknown(recipe["caption"])
                return recipe

    def attempt(self) -> dict:
        r = self.random
        background, behind = -1, ""
        roll = r.random()
        if roll < 0.06:
            background = r.randrange(len(COLOURS))
            behind = r.choice([" on a {} background", ", {} background", " with a {} background", " on {}"]).format(COLOURS[background])
        elif roll < 0.11:
            behind = r.choice([" on a white background", ", white background", ", plain background"])
        kind = r.random()
        if kind < 0.80:
            items, text, pick = self.one()
        elif kind < 0.88:
            items, text, pick = self.several()
        else:
            items, text, pick = self.two()
        if r.random() < 0.22:
            text += r.choice(STYLES[self.index[pick]["set"]])
        return {"items": items, "background": background, "caption": text + behind}

    def one(self):
        r = self.random
        pick, colour, name = self.thing(False, 0.32)
        size, roll = r.uniform(0.9, 1.04), r.random()
        if roll < 0.04:
            size, name = r.uniform(0.4, 0.55), r.choice(["small ", "tiny ", "little "]) + name
        elif roll < 0.07:
            size, name = r.uniform(1.0, 1.08), r.choice(["big ", "large ", "huge "]) + name
        elif roll < 0.17:
            name = f"{r.choice(FILLERS)} {name}"
        slack = max(0.0, (1 - size * 0.91) / 2)
        x, y = 0.5 + r.uniform(-slack, slack) * 0.6, 0.5 + r.uniform(-slack, slack) * 0.6
        mirrored = self.index[pick]["category"] != "Symbols" and r.random() < 0.4
        roll = r.random()
        if roll < 0.62:
            text = article(name)
        elif roll < 0.76:
            text = name
        elif roll < 0.79:
            text = f"the {name}"
        else:
            text = r.choice(FRAMES).format(article(name))
        return [(pick, x, y, size, mirrored, colour)], text, pick

    def several(self):
        r = self.random
        pick, colour, name = self.thing(True, 0.5)
        count = r.choices([2, 3, 4], [6, 3, 1])[0]
        text = f"{COUNTS[count]} {plural(name)}"
        if r.random() < 0.15:
            text = r.choice(FRAMES).format(text)
        if count == 2:
            size = r.uniform(0.48, 0.53)
            places = [(0.26, 0.5), (0.74, 0.5)]
        elif count == 3:
            size = r.uniform(0.42, 0.48)
            places = r.choice([[(0.27, 0.7), (0.73, 0.7), (0.5, 0.27)], [(0.25, 0.3), (0.75, 0.3), (0.5, 0.74)]])
        else:
            size = r.uniform(0.42, 0.48)
            places = [(0.27, 0.27), (0.73, 0.27), (0.27, 0.73), (0.73, 0.73)]
        return [(pick, x, y, size, False, colour) for x, y in places], text, pick

    def two(self):
        r = self.random
        first, first_colour, a = self.thing(True, 0.4)
        second, second_colour, b = self.thing(True, 0.4)
        # Both from the same set where there is a choice: one picture, one style.
        style = self.index[first]["set"]
        same = [i for i in self.things[self.index[second]["name"]] if self.index[i]["set"] == style]
        if same and second_colour == -1 and self.index[same[0]]["colour"] == self.index[second]["colour"]:
            second = same[0]
        a, b = article(a), article(b)
        size = r.uniform(0.48, 0.53)
        roll = r.random()
        if roll < 0.30:
            places = [(0.5, 0.26, size), (0.5, 0.75, size)]
            text = f"{a} {r.choice(['over', 'above', 'on top of', 'on', 'flying over'])} {b}"
        elif roll < 0.42:
            places = [(0.5, 0.75, size), (0.5, 0.26, size)]
            text = f"{a} {r.choice(['under', 'below', 'beneath'])} {b}"
        elif roll < 0.80:
            places = [(0.26, 0.5, size), (0.74, 0.5, size)]
            text = f"{a} {r.choice(['and', 'and', 'next to', 'beside', 'with', 'near'])} {b}"
        else:
            # The second is small and lies on the first: a house with a blue door.
            places = [(0.5, 0.48, r.uniform(0.92, 1.0)), (0.5, r.uniform(0.68, 0.76), r.uniform(0.34, 0.42))]
            text = f"{a} {r.choice(['with', 'behind', 'holding', 'with'])} {b}"
        items = [(first, *places[0], False, first_colour), (second, *places[1], False, second_colour)]
        return items, text, first
