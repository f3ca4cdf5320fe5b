"""A pack with the newer interface."""

from comfy_api.latest import ComfyExtension, io, ui

loaded = 0


class ThreeSum(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ThreeSum",
            display_name="Sum of three",
            category="packs/test",
            inputs=[
                io.Int.Input("a", default=1, min=0, max=10),
                io.Combo.Input("how", options=["plain", "twice"]),
                io.Autogrow.Input("more", template=io.Autogrow.TemplatePrefix(io.Int.Input("n"), prefix="n", min=0, max=3)),
            ],
            outputs=[io.Int.Output(display_name="sum")],
            hidden=[io.Hidden.unique_id],
            something_newer=True,
        )

    @classmethod
    def execute(cls, a, how, more=None):
        try:
            cls.kept = 1
        except AttributeError:
            total = a + sum((more or {}).values())
            return io.NodeOutput(total * (2 if how == "twice" else 1) + 1000 * loaded + 0 * int(cls.hidden.unique_id))
        raise RuntimeError("a node must not keep anything")


class ThreeShow(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema("ThreeShow", inputs=[io.AnyType.Input("value")], is_output_node=True)

    @classmethod
    async def execute(cls, value):
        return io.NodeOutput(ui=ui.PreviewText(str(value)))


class Extension(ComfyExtension):
    async def on_load(self):
        global loaded
        loaded += 1

    async def get_node_list(self):
        return [ThreeSum, ThreeShow]


async def comfy_entrypoint():
    return Extension()
