"""Writes `python/fresco_host/call_order.py` from a table of how the methods of the host's built-in classes are called.

    python3 tools/call_order.py packs_call_order.json > python/fresco_host/call_order.py

The table has for each Python class: its module, the method, the names of the arguments in order, from which on they have
defaults, and further names of the same method.
"""

import json
import sys

# Nodes that have another name than their Python class.
NODES = {
    "ContextWindowsManualNode": "ContextWindowsManual", "WanContextWindowsManualNode": "WanContextWindowsManual",
    "LoadImageDataSetFromFolderNode": "LoadImageDataSetFromFolder",
    "LoadImageTextDataSetFromFolderNode": "LoadImageTextDataSetFromFolder",
    "SaveImageDataSetToFolderNode": "SaveImageDataSetToFolder",
    "SaveImageTextDataSetToFolderNode": "SaveImageTextDataSetToFolder",
    "ShuffleImageTextDatasetNode": "ShuffleImageTextDataset", "EasyCacheNode": "EasyCache", "LazyCacheNode": "LazyCache",
    "EpsilonScaling": "Epsilon Scaling", "PairConditioningSetDefaultAndCombine": "PairConditioningSetDefaultCombine",
    "ConditioningSetDefaultAndCombine": "ConditioningSetDefaultCombine", "CombineHooks": "CombineHooks2",
    "CombineHooksFour": "CombineHooks4", "CombineHooksEight": "CombineHooks8", "SwitchNode": "ComfySwitchNode",
    "SoftSwitchNode": "ComfySoftSwitchNode", "CustomComboNode": "CustomCombo", "ModelSubtract": "ModelMergeSubtract",
    "ModelAdd": "ModelMergeAdd", "CLIPSubtract": "CLIPMergeSubtract", "CLIPAdd": "CLIPMergeAdd", "Blend": "ImageBlend",
    "Blur": "ImageBlur", "Quantize": "ImageQuantize", "Sharpen": "ImageSharpen", "String": "PrimitiveString",
    "StringMultiline": "PrimitiveStringMultiline", "Int": "PrimitiveInt", "Float": "PrimitiveFloat", "Boolean": "PrimitiveBoolean",
    "LatentRebatch": "RebatchLatents", "ImageRebatch": "RebatchImages", "BatchImagesMasksLatentsNode": "BatchImagesMasksLatentsNode",
}

HEAD = '''"""How the methods of the host's built-in classes are called: module, then per line the class (and its node, where that has
another name), the method, and the arguments in order; those with a question mark have defaults. After the bar: further names
of the same method. Written by `tools/call_order.py`; not to be edited."""

CALLS = """'''


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        table = json.load(file)
    modules = {}
    for name, entry in table.items():
        modules.setdefault(entry["module"], []).append((name, entry))
    lines = []
    for module, classes in modules.items():
        lines.append(module)
        for name, entry in classes:
            node = NODES.get(name)
            known = name if node is None else f"{name}={node.replace(' ', '+')}"
            arguments = [argument + "?" * (place >= entry["optional_from"]) for place, argument in enumerate(entry["args"])]
            more = ["|", *entry["aliases"]] if entry.get("aliases") else []
            lines.append(" " + " ".join([known, entry["method"], *arguments, *more]))
    print(HEAD + "\n".join(["", *lines]) + '\n"""')


main()
