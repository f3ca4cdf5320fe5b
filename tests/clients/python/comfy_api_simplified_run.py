"""Queues the workflow twice and takes the pictures the client hands back."""

import os
import sys

from comfy_api_simplified import ComfyApiWrapper, ComfyWorkflowWrapper

api = ComfyApiWrapper(os.environ["FRESCO_URL"])
workflow = ComfyWorkflowWrapper(os.environ["FRESCO_WORKFLOW"])

for attempt in ("fresh", "cached"):
    pictures = api.queue_and_wait_images(workflow, "Save Image")
    if len(pictures) != 1:
        sys.exit(f"{attempt}: {len(pictures)} pictures")
    for name, data in pictures.items():
        if not data.startswith(b"\x89PNG\r\n\x1a\n"):
            sys.exit(f"{attempt}: {name} is not a PNG")
        print(attempt, "ok", name, len(data), "bytes")
