"""The host's executor, as far as packs look at it. Replacing its methods has no effect: the engine runs prompts."""

import enum

from comfy_execution.graph import ExecutionBlocker
from fresco_host import state
from fresco_host.contract import full_type_name
from fresco_host.placeholders import fallback

MAXIMUM_HISTORY_SIZE = 10000
SENSITIVE_EXTRA_DATA_KEYS = ("auth_token_comfy_org", "api_key_comfy_org")
map_node_over_list = None


class ExecutionResult(enum.Enum):
    SUCCESS = 0
    FAILURE = 1
    PENDING = 2


class CacheType(enum.Enum):
    CLASSIC = 0
    LRU = 1
    NONE = 2
    RAM_PRESSURE = 3


class PromptExecutor:
    """Packs put methods of their own in place of these; the engine runs prompts without them."""

    def __init__(self, server=None, cache_type=False, cache_args=None):
        self.server = server
        self.success = True
        self.status_messages = []
        self.history_result = {}

    def reset(self):
        self.success = True

    def add_message(self, event, data, broadcast):
        self.status_messages.append((event, data))
        if self.server is not None and (broadcast or state.client_id is not None):
            self.server.send_sync(event, data, None if broadcast else state.client_id)

    def handle_execution_error(self, prompt_id, prompt, current_outputs, executed, error, ex):
        """Tells clients which node failed, and how."""
        node_id = error["node_id"]
        about = {
            "prompt_id": prompt_id,
            "node_id": node_id,
            "node_type": prompt[node_id]["class_type"],
            "executed": list(executed),
        }
        if ex is not None and full_type_name(type(ex)).endswith("InterruptProcessingException"):
            self.add_message("execution_interrupted", about, broadcast=True)
            return
        about.update(
            exception_message=error["exception_message"],
            exception_type=error["exception_type"],
            traceback=error["traceback"],
            current_inputs=error["current_inputs"],
            current_outputs=list(current_outputs),
        )
        self.add_message("execution_error", about, broadcast=False)

    def execute(self, *args, **kwargs):
        raise RuntimeError("prompts are run by Fresco itself, not in this process")

    async def execute_async(self, *args, **kwargs):
        self.execute()


def _ask(what, **given):
    answer, _ = state.channel.call("queue", {"what": what, **given})
    return answer


class PromptQueue:
    """The engine's queue. What is read of it is a copy of that moment."""

    def __init__(self, server=None):
        import threading

        self.mutex = threading.RLock()
        self.server = server

    @property
    def currently_running(self):
        return {number: tuple(item) for number, item in enumerate(_ask("state")["running"])}

    @property
    def queue(self):
        return [tuple(item) for item in _ask("state")["pending"]]

    @property
    def history(self):
        return _ask("history")

    def put(self, item):
        from fresco_host.values import plain_json

        _ask("put", item=[plain_json(part) for part in item])

    def get_current_queue(self):
        state = _ask("state")
        return [tuple(item) for item in state["running"]], [tuple(item) for item in state["pending"]]

    get_current_queue_volatile = get_current_queue

    def get_tasks_remaining(self):
        return _ask("remaining")

    def get_history(self, prompt_id=None, max_items=None, offset=-1, map_function=None):
        given = {"offset": offset}
        if prompt_id is not None:
            given["id"] = prompt_id
        if max_items is not None:
            given["max"] = max_items
        found = _ask("history", **given)
        return {key: map_function(entry) for key, entry in found.items()} if map_function is not None else found

    def wipe_queue(self):
        _ask("wipe")

    def delete_queue_item(self, function):
        for item in self.queue:
            if function(item):
                return bool(_ask("delete", id=item[1]))
        return False

    def wipe_history(self):
        _ask("forget")

    def delete_history_item(self, id_to_delete):
        _ask("forget", id=id_to_delete)

    def get_flags(self, reset=True):
        return {}

    def set_flag(self, name, data):
        call = state.call()
        state.channel.event("flag", name=name, value=data, call=call.number if call else 0)


async def validate_prompt(prompt_id, prompt, partial_execution_list=None):
    import asyncio

    loop = asyncio.get_running_loop()
    valid, error, outputs = await loop.run_in_executor(None, lambda: _ask("validate", prompt=prompt, targets=partial_execution_list))
    return valid, error, outputs, {}


def format_value(x):
    return x if x is None or isinstance(x, (int, float, bool, str)) else str(x)


__all__ = ["ExecutionBlocker", "full_type_name"]
__getattr__ = fallback(__name__)
