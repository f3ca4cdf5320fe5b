"""Types that lie about being equal, and inputs that are not declared, as in several well-known packs."""

from .py.types import Any, Either, Flexible


class WildAny:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"value": (Any("ANY_OF_THEM"), {})}}

    RETURN_TYPES = (Any("ANY_OF_THEM"),)
    FUNCTION = "go"

    def go(self, value):
        return (value,)


class WildEither:
    """IMAGE or LATENT."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"value": (Either("IMAGE", ("IMAGE", "LATENT")),)}}

    RETURN_TYPES = ("STRING",)
    FUNCTION = "go"

    def go(self, value):
        return (type(value).__name__,)


class WildKeywords:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}, "optional": Flexible(Any("*"))}

    RETURN_TYPES = ("STRING",)
    FUNCTION = "go"

    def go(self, **kwargs):
        return (repr(sorted(kwargs.items())),)


class WildLazy:
    """Declares other inputs to whoever orders nodes, which it finds out by the names of its callers."""

    @classmethod
    def INPUT_TYPES(cls):
        import inspect

        declared = {"required": {"select": ("INT",)}, "optional": {}}
        if [frame.function for frame in inspect.stack()[1:3]] == ["get_input_info", "get_input_info"]:
            declared["optional"] = Flexible(Any("*"), {"lazy": True})
        return declared

    RETURN_TYPES = (Any("*"),)
    FUNCTION = "go"

    def check_lazy_status(self, select, **kwargs):
        name = f"input{select}"
        return [name] if kwargs.get(name) is None else []

    def go(self, select, **kwargs):
        return (kwargs[f"input{select}"],)


class WildValidator:
    """Looks at the types of its links itself."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"value": ("IMAGE",)}}

    @classmethod
    def VALIDATE_INPUTS(cls, input_types):
        kind = input_types["value"]
        return True if isinstance(kind, Any) else f"{type(kind).__name__} {kind}"

    RETURN_TYPES = ("STRING",)
    FUNCTION = "go"
    OUTPUT_NODE = True

    def go(self, value):
        return {"ui": {"text": [str(value)]}}


NODE_CLASS_MAPPINGS = {cls.__name__: cls for cls in (WildAny, WildEither, WildKeywords, WildLazy, WildValidator)}
