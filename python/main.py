"""Starts Fresco where somebody starts ComfyUI with `python main.py`: the same flags, the folder of this file as the base,
and this interpreter for packs. The program is `FRESCO_BIN`, or `fresco` beside this file or on the search path.
"""

import os
import shutil
import sys


def program():
    here = os.path.dirname(os.path.abspath(__file__))
    name = "fresco.exe" if os.name == "nt" else "fresco"
    beside = os.path.join(here, name)
    found = os.environ.get("FRESCO_BIN") or (beside if os.path.isfile(beside) else shutil.which("fresco"))
    if not found:
        sys.exit("fresco was not found: put it beside main.py or on the search path, or set FRESCO_BIN")
    return found


def main():
    given = sys.argv[1:]
    more = []
    if "--base-directory" not in given:
        more += ["--base-directory", os.path.dirname(os.path.abspath(__file__))]
    if "--python" not in given:
        more += ["--python", sys.executable]
    path = program()
    if os.name == "nt":
        import subprocess

        sys.exit(subprocess.call([path, *more, *given]))
    # The process id stays the same, so that signals reach the program.
    os.execv(path, [path, *more, *given])


if __name__ == "__main__":
    main()
