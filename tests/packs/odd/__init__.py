"""Classes whose declarations are odd in the ways that packs have: groups without a list, names without an end, calls that do
not come back, text types that are equal to everything and have no hash."""

import os
import time

import folder_paths


print("\x1b[31mred words\x1b[0m of odd")


class Everything:
    """A group of inputs that knows every name and lists none."""

    def __contains__(self, name):
        return True

    def __getitem__(self, name):
        return ("*", {})


class Endless(dict):
    def keys(self):
        number = 0
        while True:
            number += 1
            yield f"name{number}"

    __iter__ = keys


class AnyText(str):
    # Without `__hash__`: an instance cannot be a key.
    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False


ANY = AnyText("*")


class OddEverything:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}, "optional": Everything()}

    RETURN_TYPES = ("STRING",)
    FUNCTION = "run"

    def run(self, **kwargs):
        return (", ".join(f"{name}={kwargs[name]}" for name in sorted(kwargs)),)


class OddWaits(OddEverything):
    """Waits in its declaration, and catches what could end the wait."""

    @classmethod
    def INPUT_TYPES(cls):
        while os.path.exists(os.path.join(folder_paths.get_input_directory(), "wait")):
            try:
                time.sleep(1000)
            except Exception:
                pass
        return {"required": {}}


class OddEndless(OddEverything):
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": Endless()}


class OddTypes:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"value": (ANY, {})}, "hidden": {"more": (ANY,), "id": AnyText("UNIQUE_ID")}}

    RETURN_TYPES = (ANY, AnyText("STRING"))
    FUNCTION = "run"

    def run(self, value, id=None, more=None):
        return (value, f"{value} in {id}")


NODE_CLASS_MAPPINGS = {cls.__name__: cls for cls in (OddEverything, OddWaits, OddEndless, OddTypes)}
