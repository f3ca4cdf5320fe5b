class Prestarted:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    RETURN_TYPES = ()
    FUNCTION = "go"
    OUTPUT_NODE = True

    def go(self):
        return {"ui": {"text": ["here"]}}


NODE_CLASS_MAPPINGS = {"Prestarted": Prestarted}
