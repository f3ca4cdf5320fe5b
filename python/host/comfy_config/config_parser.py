"""What a pack's pyproject.toml says."""

import os
import types


def extract_node_configuration(path):
    """`project.name` and `tool.comfy.web` of a pack, or of a single file; None where it cannot be read."""
    from fresco_host.loader import project_settings

    home = path if os.path.isdir(path) else os.path.dirname(path)
    name, web = project_settings(home) if os.path.isdir(path) else (None, "")
    if name is None:
        name = os.path.splitext(os.path.basename(path))[0]
    return types.SimpleNamespace(project=types.SimpleNamespace(name=name), tool_comfy=types.SimpleNamespace(web=web))
