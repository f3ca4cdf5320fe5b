"""Runs the workflow twice with `comfy run --wait`, as a person at a terminal would."""

import json
import os
import subprocess
import sys

comfy = os.path.join(os.path.dirname(sys.executable), "comfy")

for attempt in ("fresh", "cached"):
    done = subprocess.run(
        [comfy, "--skip-prompt", "--json", "--where", "local", "run", "--workflow", os.environ["FRESCO_WORKFLOW"],
         "--host", os.environ["FRESCO_HOST"], "--port", os.environ["FRESCO_PORT"], "--wait", "--timeout", "30"],
        capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        sys.exit(f"{attempt}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    envelope = json.loads(done.stdout.strip().splitlines()[-1]) if done.stdout.strip().startswith("{") else {}
    print(attempt, "ok", json.dumps(envelope)[:200])
