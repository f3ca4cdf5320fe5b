#!/usr/bin/env python3
"""Run the memory room's cases on a GPU: one process for each, since a GPU is one for all of a process.

    python3 tools/cuda/memory_cases.py BINARY [--device cuda:0] [--jobs 4] [--only PART]

BINARY is what `cargo test -p fresco-memory --test registry --no-run` names. Each case has the GPU as its first device, as if
that had only as much memory as the case says; other devices of the case are simulated. Prints a line for each case, what those
that failed said, and the counts.
"""

import argparse
import concurrent.futures
import os
import subprocess
import sys
import time


def cases(binary):
    listed = subprocess.run([binary, "--list", "--format", "terse"], check=True, capture_output=True, text=True).stdout
    return [line.removesuffix(": test") for line in listed.splitlines() if line.endswith(": test")]


def run(binary, device, name, limit):
    begun = time.monotonic()
    env = {**os.environ, "FRESCO_TEST_DEVICE": device, "RUST_BACKTRACE": "0"}
    try:
        done = subprocess.run([binary, "--exact", name, "--nocapture"], env=env, capture_output=True, text=True, timeout=limit)
        passed, said = done.returncode == 0, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        passed, said = False, f"not done after {limit} s"
    return name, passed, time.monotonic() - begun, said


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--limit", type=int, default=60, help="seconds for one case")
    parser.add_argument("--only", default="", help="cases with this in their name")
    told = parser.parse_args()
    binary = os.path.abspath(told.binary)
    names = [name for name in cases(binary) if told.only in name]
    failed = []
    with concurrent.futures.ThreadPoolExecutor(told.jobs) as pool:
        work = [pool.submit(run, binary, told.device, name, told.limit) for name in names]
        for one in concurrent.futures.as_completed(work):
            name, passed, seconds, said = one.result()
            print(f"{'ok    ' if passed else 'FAILED'} {seconds:6.2f} s  {name}", flush=True)
            if not passed:
                failed.append((name, said))
    for name, said in failed:
        print(f"\n---- {name}\n" + "\n".join(said.splitlines()[-12:]))
    print(f"\n{told.device}: {len(names) - len(failed)} of {len(names)} cases passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
