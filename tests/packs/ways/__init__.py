"""Ways of well-known packs, put together from modules as those are: a folder of their own on the path, output that is swapped,
functions of the host that are replaced, a thread, a setting on disk."""

import contextlib
import importlib
import io
import json
import os
import sys
import threading

here = os.path.dirname(__file__)
sys.path.append(here)
os.environ.setdefault("WAYS_SET_AT_IMPORT", "yes")
import helpers_of_ways  # noqa: E402  a name at the top, as many packs have it

said = io.StringIO()
with contextlib.redirect_stdout(said):
    print("swapped")

with open(os.path.join(here, "settings.json"), "w") as file:
    json.dump({"starts": 1}, file)

ticks = []
threading.Thread(target=lambda: ticks.append(threading.current_thread().name), name="ways", daemon=True).start()

NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS = {}, {}
for name in ("patches", "values", "looks"):
    part = importlib.import_module(f".parts.{name}", package=__name__)
    NODE_CLASS_MAPPINGS.update(part.NODE_CLASS_MAPPINGS)
    NODE_DISPLAY_NAME_MAPPINGS.update({key: f"{key} ({helpers_of_ways.MARK})" for key in part.NODE_CLASS_MAPPINGS})
