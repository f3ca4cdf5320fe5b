from .node_typing import *
from .node_typing import IO, CheckLazyMixin, ComfyNodeABC
