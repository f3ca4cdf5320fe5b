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
        import os

        from fresco_host import state

        os.close(state.channel.sock.fileno())
        time.sleep(60)

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
