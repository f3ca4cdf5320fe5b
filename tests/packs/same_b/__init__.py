class Same:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    RETURN_TYPES = ("STRING",)
    FUNCTION = "go"
    DESCRIPTION = "of b"

    def go(self):
        return ("b",)


NODE_CLASS_MAPPINGS = {"SameName": Same}
NODE_DISPLAY_NAME_MAPPINGS = {"SameName": "Same (b)"}
