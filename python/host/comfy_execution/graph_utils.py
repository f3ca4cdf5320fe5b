"""Sub-graphs that nodes expand into."""

try:
    from fresco_host import state
except ImportError:
    # Outside of Fresco, where somebody only writes prompts with it.
    state = None


def is_link(obj):
    return isinstance(obj, list) and len(obj) == 2 and isinstance(obj[0], str) and type(obj[1]) in (int, float)


class ExecutionBlocker:
    def __init__(self, message):
        self.message = message


class Node:
    def __init__(self, id, class_type, inputs):
        self.id = id
        self.class_type = class_type
        self.inputs = inputs
        self.override_display_id = None

    def out(self, index):
        return [self.id, index]

    def set_input(self, key, value):
        if value is None:
            self.inputs.pop(key, None)
        else:
            self.inputs[key] = value

    def get_input(self, key):
        return self.inputs.get(key)

    def set_override_display_id(self, override_display_id):
        self.override_display_id = override_display_id

    def serialize(self):
        serialized = {"class_type": self.class_type, "inputs": self.inputs}
        if self.override_display_id is not None:
            serialized["override_display_id"] = self.override_display_id
        return serialized


class GraphBuilder:
    _default_prefix_root = ""
    _default_prefix_call_index = 0
    _default_prefix_graph_index = 0

    def __init__(self, prefix=None):
        self.prefix = GraphBuilder.alloc_prefix() if prefix is None else prefix
        self.nodes = {}
        self.id_gen = 1

    @classmethod
    def set_default_prefix(cls, prefix_root, call_index, graph_index=0):
        cls._default_prefix_root = prefix_root
        cls._default_prefix_call_index = call_index
        cls._default_prefix_graph_index = graph_index

    @classmethod
    def alloc_prefix(cls, root=None, call_index=None, graph_index=None):
        call = state.current.get() if state is not None else None
        if call is not None:
            root = call.node_id if root is None else root
            call_index = (call.index or 0) if call_index is None else call_index
            if graph_index is None:
                graph_index = call.graphs
                call.graphs += 1
        else:
            root = cls._default_prefix_root if root is None else root
            call_index = cls._default_prefix_call_index if call_index is None else call_index
            if graph_index is None:
                graph_index = cls._default_prefix_graph_index
                cls._default_prefix_graph_index += 1
        return f"{root}.{call_index}.{graph_index}."

    def node(self, class_type, id=None, **kwargs):
        if id is None:
            id = str(self.id_gen)
            self.id_gen += 1
        id = self.prefix + id
        if id in self.nodes:
            return self.nodes[id]
        node = self.nodes[id] = Node(id, class_type, kwargs)
        return node

    def lookup_node(self, id):
        return self.nodes.get(self.prefix + id)

    def finalize(self):
        return {id: node.serialize() for id, node in self.nodes.items()}

    def replace_node_output(self, node_id, index, new_value):
        node_id = self.prefix + node_id
        for node in self.nodes.values():
            for key, value in list(node.inputs.items()):
                if is_link(value) and value[0] == node_id and value[1] == index:
                    node.set_input(key, new_value)

    def remove_node(self, id):
        del self.nodes[self.prefix + id]


def add_graph_prefix(graph, outputs, prefix):
    def moved(value):
        return [prefix + value[0], value[1]] if is_link(value) else value

    renamed = {}
    for id, node in graph.items():
        inputs = {key: moved(value) for key, value in node["inputs"].items()}
        renamed[prefix + id] = {**node, "inputs": inputs}
    return renamed, tuple(moved(output) for output in outputs)
