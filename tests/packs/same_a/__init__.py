class Same:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    RETURN_TYPES = ("STRING",)
    FUNCTION = "go"
    DESCRIPTION = "of a"

    def go(self):
        return ("a",)


NODE_CLASS_MAPPINGS = {"SameName": Same}
NODE_DISPLAY_NAME_MAPPINGS = {"SameName": "Same (a)"}
