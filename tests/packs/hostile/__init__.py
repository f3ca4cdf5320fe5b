"""Nodes that misbehave in one way each."""

import time


class Hostile:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"how": ("STRING",)}}

    RETURN_TYPES = ("STRING",)
    FUNCTION = "go"
    OUTPUT_NODE = True

    def go(self, how):
        from server import PromptServer

        PromptServer.instance.send_sync("hostile.began", {"how": how})
        return getattr(self, how)()

    def segfault(self):
        import ctypes

        ctypes.string_at(0)

    def exit(self):
        import os

        os._exit(3)

    def system_exit(self):
        raise SystemExit(4)

    def kill(self):
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)

    def garbage(self):
        from fresco_host import state

        state.channel.sock.sendall(b"\xff" * 64)
        time.sleep(60)

    def close(self):
        import socket

        from fresco_host import state

        state.channel.sock.shutdown(socket.SHUT_RDWR)
        time.sleep(60)

    def fork_and_die(self):
        import os
        import signal

        for _ in range(3):
            if os.fork() == 0:
                # A copy of the whole process, which goes on.
                time.sleep(600)
                return {"ui": {"text": ["a copy"]}}
        os.kill(os.getpid(), signal.SIGSEGV)
        # Another thread may be the one that is hit.
        time.sleep(60)

    def fork_and_answer(self):
        import os

        # Both give back a result.
        return {"ui": {"text": ["first" if os.fork() else "copy"]}}

    def threads(self):
        import threading

        for _ in range(200):
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        return {"ui": {"text": ["started"]}}

    def deep(self):
        value = []
        for _ in range(100_000):
            value = [value]
        return (value,)

    def print_forever(self):
        while True:
            print("x" * 1000)

    def write_outside(self):
        import os

        import folder_paths

        # Its own folder and those of the host are for it; what is beside them is not.
        here = os.path.dirname(__file__)
        for folder in (here, folder_paths.get_output_directory(), folder_paths.get_temp_directory()):
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, "own.txt"), "w") as file:
                file.write("own")
        with open(os.path.join(folder_paths.base_path, "outside.txt"), "w") as file:
            file.write("outside")
        return {"ui": {"text": ["written"]}}

    def write_outside_by_the_system(self):
        import os
        import subprocess

        import folder_paths

        place = os.path.join(folder_paths.base_path, "outside.txt")
        done = subprocess.run(["/bin/sh", "-c", f"echo outside > {place}"])
        return {"ui": {"text": [done.returncode]}}

    def loop(self):
        while True:
            pass

    def sleep(self):
        time.sleep(3600)

    def shout(self):
        for number in range(200_000):
            print("x" * 100, number)
        return {"ui": {"text": ["done"]}}

    def fork(self):
        import subprocess
        import sys

        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        return {"ui": {"text": ["forked"]}}


NODE_CLASS_MAPPINGS = {"Hostile": Hostile}
