"""Takes memory until there is none."""


class Eater:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"megabytes": ("INT",)}}

    RETURN_TYPES = ()
    FUNCTION = "go"
    OUTPUT_NODE = True

    def go(self, megabytes):
        taken = []
        for _ in range(megabytes):
            taken.append(bytearray(b"x") * (1 << 20))
        return {"ui": {"text": [len(taken)]}}


NODE_CLASS_MAPPINGS = {"Eater": Eater}
