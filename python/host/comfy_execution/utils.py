"""Which node runs."""

import contextlib
from typing import NamedTuple, Optional

from fresco_host import state


class ExecutionContext(NamedTuple):
    prompt_id: str
    node_id: str
    list_index: Optional[int]


def get_executing_context():
    call = state.current.get()
    return None if call is None else ExecutionContext(call.prompt_id, call.node_id, call.index)


class CurrentNodeContext(contextlib.AbstractContextManager):
    def __init__(self, prompt_id, node_id, list_index=None):
        self.call = state.Call(0, prompt_id, node_id, list_index)

    def __enter__(self):
        current = state.call()
        if current is not None:
            self.call.number = current.number
        self.token = state.current.set(self.call)
        return self

    def __exit__(self, *_):
        state.current.reset(self.token)
