"""Small things that samplers and packs use."""

import contextlib
import os

from fresco_host.placeholders import fallback


class FolderOfImages:
    """The pictures below a folder, in the order of their names."""

    IMG_EXTENSIONS = {".png", ".jpg", ".jpeg", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}

    def __init__(self, root, transform=None):
        self.root = os.fspath(root)
        self.transform = transform
        self.paths = sorted(
            os.path.join(folder, name)
            for folder, _, names in os.walk(self.root)
            for name in names
            if os.path.splitext(name)[1].lower() in self.IMG_EXTENSIONS
        )

    def __repr__(self):
        return f'FolderOfImages(root="{self.root}", len: {len(self)})'

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, key):
        from PIL import Image

        with open(self.paths[key], "rb") as file:
            picture = Image.open(file).convert("RGB")
        return (picture if self.transform is None else self.transform(picture),)


def append_dims(x, target_dims):
    """The tensor with dimensions of one behind its own, up to a number of them."""
    missing = target_dims - x.ndim
    if missing < 0:
        raise ValueError(f"input has {x.ndim} dims but target_dims is {target_dims}, which is less")
    return x[(...,) + (None,) * missing]


def n_params(module):
    return sum(parameter.numel() for parameter in module.parameters())


@contextlib.contextmanager
def train_mode(model, mode=True):
    before = [module.training for module in model.modules()]
    try:
        yield model.train(mode)
    finally:
        for module, was in zip(model.modules(), before):
            module.training = was


def eval_mode(model):
    return train_mode(model, False)


__getattr__ = fallback(__name__)
