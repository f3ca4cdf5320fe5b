"""What the parts of this process share."""

import contextvars
import threading


class Call:
    """One question of the engine that is being answered."""

    def __init__(self, number, prompt_id="", node_id="", index=0, name=""):
        self.number = number
        self.prompt_id = prompt_id
        self.node_id = node_id
        self.index = index
        self.class_name = name
        self.graphs = 0
        self.imported = {}


channel = None
# What the engine said at the start.
hello = {}
server_loop = None
node_loop = None
node_thread = None
server_thread = None
current = contextvars.ContextVar("fresco_call", default=None)
# The newest call: threads that packs start have no context of their own.
latest = None
client_id = None
last_prompt_id = None
last_node_id = None

interrupted = threading.Event()
interrupted_prompt = None


def call():
    return current.get() or latest
