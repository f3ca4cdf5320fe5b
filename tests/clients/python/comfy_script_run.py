"""Builds the workflow from the server's own node list, as ComfyScript does, and runs it twice.

ComfyScript makes a Python class of every node in /object_info; one malformed entry shows up as a failed load.
"""

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout

from comfy_script import runtime

heard = io.StringIO()
with redirect_stdout(heard), redirect_stderr(heard):
    runtime.load(os.environ["FRESCO_URL"], watch=True)
print(heard.getvalue())
if "Failed to load node" in heard.getvalue() or "Traceback" in heard.getvalue():
    sys.exit("some nodes could not be loaded")

from comfy_script.runtime.nodes import EmptyImage, ImageInvert, SaveImage  # noqa: E402

with open(os.environ["FRESCO_WORKFLOW"], encoding="utf8") as file:
    graph = json.load(file)
colour = graph["1"]["inputs"]["color"]

for attempt in ("fresh", "cached"):
    with runtime.Workflow(wait=True) as workflow:
        image = ImageInvert(EmptyImage(64, 64, 1, colour))
        saved = SaveImage(image, "script")
    pictures = saved.wait().wait()
    if len(pictures) != 1 or pictures[0].size != (64, 64):
        sys.exit(f"{attempt}: got {pictures!r}")
    print(attempt, "ok", pictures[0].size)
