"""A plain function as the entry, and every kind of widget."""

from comfy_api.latest import ComfyExtension, io


class Widgets(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="Widgets",
            display_name="All widgets",
            category="packs/test",
            description="Has one of each.",
            inputs=[
                io.Boolean.Input("flag", default=True, label_on="on", label_off="off"),
                io.Int.Input("count", default=3, min=0, max=18446744073709551615, step=1, control_after_generate=True, display_mode=io.NumberDisplay.slider),
                io.Float.Input("part", default=0.5, min=0.0, max=1.0, step=0.1, round=0.01, tooltip="how much"),
                io.String.Input("text", multiline=True, placeholder="write", default="a", dynamic_prompts=True),
                io.Combo.Input("choice", options=["x", "y"], default="y", upload=io.UploadType.image, image_folder=io.FolderType.input),
                io.MultiCombo.Input("several", options=["x", "y"], default=["x"], placeholder="some", chip=True),
                io.Image.Input("image", optional=True, lazy=True),
                io.MultiType.Input("either", types=[io.Image, io.Mask], optional=True),
                io.Custom("OWN_TYPE").Input("own", optional=True),
            ],
            outputs=[io.Image.Output(display_name="picture", tooltip="out"), io.Int.Output(is_output_list=True)],
            hidden=[io.Hidden.prompt],
            is_experimental=True,
            search_aliases=["newer"],
        )

    @classmethod
    def execute(cls, **kwargs):
        return io.NodeOutput(None, [1, 2])


class Chooser(io.ComfyNode):
    """Inputs that depend on a choice, and slots that grow by name."""

    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="Chooser",
            inputs=[
                io.DynamicCombo.Input(
                    "how",
                    options=[
                        io.DynamicCombo.Option("plain", [io.Int.Input("a", default=1)]),
                        io.DynamicCombo.Option("deep", [io.Float.Input("b", default=0.5), io.String.Input("c", default="z")]),
                    ],
                ),
                io.Autogrow.Input("grown", template=io.Autogrow.TemplateNames(io.Int.Input("n"), names=["p", "q"], min=0)),
            ],
            outputs=[io.String.Output()],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, how, grown=None):
        try:
            cls.kept = 1
        except AttributeError as error:
            locked = str(error)
        return io.NodeOutput(ui={"text": [repr(how), repr(grown), "cannot be set" in locked, cls.hidden.nothing is None]})


class Extension(ComfyExtension):
    async def get_node_list(self):
        return [Widgets, Chooser]


def comfy_entrypoint():
    return Extension()
