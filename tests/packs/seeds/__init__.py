"""Rewrites numbers of prompts before they are checked, as packs for seeds do."""

from server import PromptServer


def on_prompt(data):
    for node in data["prompt"].values():
        if node["class_type"] == "PackAdd":
            node["inputs"]["a"] += 1000
    data.setdefault("extra_data", {})["seeds"] = "seen"
    return data


PromptServer.instance.add_on_prompt_handler(on_prompt)
NODE_CLASS_MAPPINGS = {}
