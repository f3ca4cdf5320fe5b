"""Progress of the nodes of this process. The engine keeps that of all others, and tells clients."""

import abc
import enum

from fresco_host import state


class NodeState(enum.Enum):
    Pending = "pending"
    Running = "running"
    Finished = "finished"
    Error = "error"


class ProgressHandler(abc.ABC):
    def __init__(self, name):
        self.name = name
        self.enabled = True

    def set_registry(self, registry):
        pass

    def start_handler(self, node_id, state, prompt_id):
        pass

    def update_handler(self, node_id, value, max_value, state, prompt_id, image=None):
        pass

    def finish_handler(self, node_id, state, prompt_id):
        pass

    def reset(self):
        pass

    def enable(self):
        self.enabled = True

    def disable(self):
        self.enabled = False


class ProgressRegistry:
    def __init__(self, prompt_id="", dynprompt=None):
        self.prompt_id = prompt_id
        self.dynprompt = dynprompt
        self.nodes = {}
        self.handlers = {}

    def register_handler(self, handler):
        self.handlers[handler.name] = handler
        handler.set_registry(self)

    def unregister_handler(self, handler_name):
        self.handlers.pop(handler_name, None)

    def enable_handler(self, handler_name):
        if handler_name in self.handlers:
            self.handlers[handler_name].enable()

    def disable_handler(self, handler_name):
        if handler_name in self.handlers:
            self.handlers[handler_name].disable()

    def ensure_entry(self, node_id):
        return self.nodes.setdefault(node_id, {"state": NodeState.Pending, "value": 0, "max": 1})

    def _tell(self, method, *given):
        for handler in list(self.handlers.values()):
            if handler.enabled:
                getattr(handler, method)(*given)

    def start_progress(self, node_id):
        entry = self.ensure_entry(node_id)
        entry.update(state=NodeState.Running, value=0.0, max=1.0)
        self._tell("start_handler", node_id, entry, self.prompt_id)

    def update_progress(self, node_id, value, max_value, image=None):
        entry = self.ensure_entry(node_id)
        entry.update(state=NodeState.Running, value=value, max=max_value)
        self._tell("update_handler", node_id, value, max_value, entry, self.prompt_id, image)
        from comfy.utils import _report

        _report(value, max_value, image, node_id, bar=False)

    def finish_progress(self, node_id):
        entry = self.ensure_entry(node_id)
        entry.update(state=NodeState.Finished, value=entry["max"])
        self._tell("finish_handler", node_id, entry, self.prompt_id)

    def reset_handlers(self):
        for handler in self.handlers.values():
            handler.reset()


_registry = ProgressRegistry()


def get_progress_state():
    call = state.call()
    if call is not None and call.prompt_id != _registry.prompt_id:
        reset_progress_state(call.prompt_id, None)
    return _registry


def reset_progress_state(prompt_id, dynprompt):
    _registry.reset_handlers()
    _registry.prompt_id, _registry.dynprompt = prompt_id, dynprompt
    _registry.nodes.clear()


def add_progress_handler(handler):
    get_progress_state().register_handler(handler)
