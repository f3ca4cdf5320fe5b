"""Nodes that take what another pack makes, wherever it runs."""

import os


class ApartUnwrap:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"thing": ("THING",)}}

    RETURN_TYPES = ("STRING",)
    FUNCTION = "go"

    def go(self, thing):
        return (f"{thing.text} apart",)


class ApartPass:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"image": ("IMAGE",)}}

    RETURN_TYPES = ("IMAGE", "STRING")
    FUNCTION = "go"

    def go(self, image):
        return (image, f"{list(image.shape)} {os.getpid()}")


class ApartDie:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    RETURN_TYPES = ()
    FUNCTION = "go"
    OUTPUT_NODE = True

    def go(self):
        os._exit(5)


NODE_CLASS_MAPPINGS = {cls.__name__: cls for cls in (ApartUnwrap, ApartPass, ApartDie)}
