import os
import time

import folder_paths

# As long as somebody holds it up, and a little at least.
time.sleep(0.3)
while os.path.exists(os.path.join(folder_paths.get_input_directory(), "wait")):
    time.sleep(0.02)


class Slow:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    RETURN_TYPES = ()
    FUNCTION = "go"
    OUTPUT_NODE = True

    def go(self):
        return {"ui": {"text": ["slow"]}}


NODE_CLASS_MAPPINGS = {"Slow": Slow}
