"""The running graph, as nodes may look at it."""

from comfy_execution.graph_utils import ExecutionBlocker, is_link


class DependencyCycleError(Exception):
    pass


class NodeInputError(Exception):
    pass


class NodeNotFoundError(Exception):
    pass


class DynamicPrompt:
    def __init__(self, original_prompt):
        self.original_prompt = original_prompt
        self.ephemeral_prompt = {}
        self.ephemeral_parents = {}
        self.ephemeral_display = {}

    @classmethod
    def _from_engine(cls, sent):
        made = cls({})
        for id, class_type, inputs, parent, display in sent:
            node = {"class_type": class_type, "inputs": inputs}
            if parent is None:
                made.original_prompt[id] = node
            else:
                made.ephemeral_prompt[id] = node
                made.ephemeral_parents[id] = parent
                made.ephemeral_display[id] = display
        return made

    def get_node(self, node_id):
        if node_id in self.ephemeral_prompt:
            return self.ephemeral_prompt[node_id]
        if node_id in self.original_prompt:
            return self.original_prompt[node_id]
        raise NodeNotFoundError(f"Node {node_id} not found")

    def has_node(self, node_id):
        return node_id in self.original_prompt or node_id in self.ephemeral_prompt

    def add_ephemeral_node(self, node_id, node_info, parent_id, display_id):
        self.ephemeral_prompt[node_id] = node_info
        self.ephemeral_parents[node_id] = parent_id
        self.ephemeral_display[node_id] = display_id

    def get_real_node_id(self, node_id):
        while node_id in self.ephemeral_parents:
            node_id = self.ephemeral_parents[node_id]
        return node_id

    def get_parent_node_id(self, node_id):
        return self.ephemeral_parents.get(node_id)

    def get_display_node_id(self, node_id):
        while node_id in self.ephemeral_display:
            node_id = self.ephemeral_display[node_id]
        return node_id

    def all_node_ids(self):
        return set(self.original_prompt) | set(self.ephemeral_prompt)

    def get_original_prompt(self):
        return self.original_prompt


def get_input_info(class_def, input_name, valid_inputs=None):
    info = valid_inputs or class_def.INPUT_TYPES()
    for category in ("required", "optional", "hidden"):
        if category in info and input_name in info[category]:
            entry = info[category][input_name]
            return entry[0], category, entry[1] if len(entry) > 1 else {}
    return None, None, None


__all__ = ["DynamicPrompt", "ExecutionBlocker", "get_input_info", "is_link"]
