"""Writes the words that the starter model was shown, for the page: it names those of a prompt that are not among them.

    python3 vocabulary.py SCRIPTS_FOLDER [DATA_FOLDER] > ../../web/src/create/starterWords.ts

SCRIPTS_FOLDER has words.py, roster.py, captions.py, prompts.txt and layers.py of the training; DATA_FOLDER is prep.py's, with
the unpacked picture sets. Without it the seldom things, which have no words but their names there, are left out.
"""

import ast
import json
import pathlib
import re
import sys

# How captions.py and layers.py join what they name.
JOINING = (
    "a an the of in on at to from with and or by over above flying high top sitting standing under below beneath behind front next"
    " beside together near holding carrying having wearing pair background plain house wall door roof scarf hat woolly knitted winter"
    " party cap wool crown golden glasses sunglasses light dark grey violet silver wooden gold tiny small little big large huge"
)


def scenes(source: str) -> list[str]:
    """The words for places, read without running the file: it would want a renderer."""
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "SCENES":
            return [word for scene in statement.value.elts for word in ast.literal_eval(scene.elts[0])]
    raise SystemExit("layers.py has no SCENES")


def seldom(data: pathlib.Path, words) -> list[str]:
    """Names of pictures that prep.py takes and roster.py does not name."""
    names = []
    for folder in sorted(data.glob("iconify-json-*")):
        package = folder / "package"
        # "animal nature" and "people body" in one file, "Animals & Nature" in another: only the first letters are compared.
        by_icon = {icon: category for category, icons in json.loads((package / "metadata.json").read_text()).get("categories", {}).items() for icon in icons}
        for icon, category in by_icon.items():
            if words.LEAVE_OUT.search(icon) or words.SELDOM.search(icon) or category.startswith("Flag"):
                continue
            if category.startswith("People") and icon not in words.PEOPLE or category.startswith("Symbol") and icon not in words.SYMBOLS:
                continue
            names.append(icon)
    return names


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    sys.path.insert(0, str(folder))
    import captions
    import roster
    import words

    texts = [JOINING, *captions.FILLERS, *captions.FRAMES, *captions.TAILS, *captions.PARTS, *captions.DOING, *captions.ANY]
    texts += [*words.COLOURS, *captions.FLAVOURS, *captions.SHAPES, *(w for ws in captions.STYLES.values() for w in ws)]
    texts += [w for _, ws, _ in captions.COUNTS for w in ws]
    texts += scenes((folder / "layers.py").read_text())
    names = [*roster.KEEP, *(v for vs in captions.VARIANTS.values() for v in vs)]
    if len(sys.argv) > 2:
        names += seldom(pathlib.Path(sys.argv[2]), words)
    for name in names:
        texts += [roster.CALLED.get(name, name), *words.SYNONYMS.get(name, []), *roster.ALSO_SAY.get(name, [])]
    texts += list(roster.OWNER)
    known = sorted({word for text in texts for word in re.findall(r"[a-z0-9]+", text.lower()) if len(word) > 1 or word.isdigit()})
    lines, line = [], ""
    for word in known:
        if len(line) + len(word) > 116:
            lines.append(line)
            line = ""
        line += f"{' ' if line else ''}{word}"
    lines.append(line)
    print("// The words the starter model was shown, each alone. Written by tools/starter/vocabulary.py; do not edit.")
    print("export const STARTER_WORDS = `")
    print("\n".join(lines))
    print("`;")


if __name__ == "__main__":
    main()
