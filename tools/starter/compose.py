"""Makes training pictures from recipes on the device: places and recolours the packed pictures."""

import io
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F

from words import COLOURS, SCENES

# For each colour: hue, least saturation, factor of saturation, and a line for brightness (v -> a + b v).
RECOLOUR = {
    "red": (357, 0.72, 1, 0.18, 0.82), "orange": (28, 0.8, 1, 0.45, 0.55), "yellow": (50, 0.75, 1, 0.55, 0.45),
    "green": (128, 0.6, 1, 0.12, 0.75), "blue": (214, 0.68, 1, 0.2, 0.78), "purple": (276, 0.55, 1, 0.2, 0.72),
    "pink": (334, 0.4, 0.55, 0.5, 0.5), "brown": (24, 0.55, 0.8, 0.08, 0.5), "black": (220, 0, 0.12, 0.03, 0.27),
    "white": (220, 0, 0.06, 0.8, 0.2), "gray": (220, 0, 0.06, 0.22, 0.45),
}  # fmt: skip
BACKGROUND = {
    "red": (232, 72, 72), "orange": (255, 170, 80), "yellow": (255, 226, 110), "green": (120, 205, 130),
    "blue": (110, 175, 245), "purple": (178, 140, 230), "pink": (255, 180, 210), "brown": (160, 115, 80),
    "black": (20, 20, 22), "white": (255, 255, 255), "gray": (190, 190, 195),
}  # fmt: skip

# Behind white things, which would not be seen on white.
PALE = (206, 226, 243)


def decode(data: bytes) -> torch.Tensor:
    """A packed picture as (4, h, w) bytes."""
    try:
        import numpy as np
        from PIL import Image

        return torch.from_numpy(np.array(Image.open(io.BytesIO(data)).convert("RGBA"))).permute(2, 0, 1)
    except ImportError:
        from torchvision.io import ImageReadMode, decode_webp

        return decode_webp(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB_ALPHA)


def to_hsv(rgb):
    high, where = rgb.max(1)
    low = rgb.min(1).values
    span = (high - low).clamp_min(1e-6)
    r, g, b = rgb.unbind(1)
    h = torch.where(where == 0, (g - b) / span, torch.where(where == 1, 2 + (b - r) / span, 4 + (r - g) / span))
    return (h * 60) % 360, (high - low) / high.clamp_min(1e-6), high


def from_hsv(h, s, v):
    def part(n):
        k = (n + h / 60) % 6
        return v - v * s * torch.minimum(k, 4 - k).clamp(0, 1)

    return torch.stack([part(5), part(3), part(1)], 1)


class Studio:
    def __init__(self, index: list[dict], blob: bytes, device) -> None:
        with ThreadPoolExecutor() as pool:
            pictures = list(pool.map(lambda e: decode(blob[e["at"] : e["at"] + e["size"]]), index))
        self.set_up(torch.stack(pictures), index, device)

    def set_up(self, pictures, index: list[dict], device) -> None:
        self.device = device
        self.pictures = pictures.to(device)
        self.hues = torch.tensor([entry["hue"] for entry in index], device=device)
        self.recolour = torch.tensor([RECOLOUR[c] for c in COLOURS], device=device)
        self.backgrounds = torch.tensor(
            [*(BACKGROUND[c] for c in COLOURS), *(ground or (255, 255, 255) for ground, _ in SCENES), PALE, (255, 255, 255)], device=device
        ) / 255

    def recoloured(self, rgb, picture, target):
        """Turns the main colour of each picture into the asked one; other colours stay."""
        h, s, v = to_hsv(rgb)
        own = self.hues[picture][:, None, None]
        away = (h - own).abs()
        away = torch.minimum(away, 360 - away)
        chromatic = ((62 - away) / 24).clamp(0, 1) * ((s - 0.08) / 0.12).clamp(0, 1)
        grey = ((0.32 - s) / 0.12).clamp(0, 1)
        mask = torch.where(own >= 0, chromatic, grey)
        hue, least, factor, a, b = (p[:, None, None] for p in self.recolour[target.clamp_min(0)].unbind(1))
        # What was grey gets its saturation from the colour alone; highlights keep some of their paleness.
        pale = torch.where(own >= 0, (s / 0.5).clamp(0.25, 1), torch.ones_like(s))
        new = from_hsv(hue.expand_as(h), (torch.maximum(s * factor, least * pale)).clamp(0, 1), a + b * v)
        mask = mask * (target >= 0)[:, None, None]
        return rgb + (new - rgb) * mask[:, None]

    def make(self, recipes: list[dict]):
        """(n, 3, size, size) in -1..1."""
        device, n = self.device, len(recipes)
        background = torch.tensor([r["background"] for r in recipes], device=device)
        size = self.pictures.shape[-1]
        canvas = self.backgrounds[background][:, :, None, None].expand(n, 3, size, size).clone()
        for slot in range(max(len(r["items"]) for r in recipes)):
            rows = [i for i, r in enumerate(recipes) if slot < len(r["items"])]
            items = [recipes[i]["items"][slot] for i in rows]
            picture = torch.tensor([i[0] for i in items], device=device)
            x, y, scale = (torch.tensor([i[k] for i in items], device=device, dtype=torch.float32) for k in (1, 2, 3))
            target = torch.tensor([i[4] for i in items], device=device)
            rgba = self.pictures[picture].float() / 255
            rgb, other = rgba[:, :3], target >= 0
            if other.any():
                rgb[other] = self.recoloured(rgb[other], picture[other], target[other])
            layer = torch.cat([rgb * rgba[:, 3:], rgba[:, 3:]], 1)
            zero = torch.zeros_like(x)
            shift_x, shift_y = -(2 * x - 1) / scale, -(2 * y - 1) / scale
            theta = torch.stack(
                [torch.stack([1 / scale, zero, shift_x], 1), torch.stack([zero, 1 / scale, shift_y], 1)], 1
            )
            # Where one is shrunk, twice the size first, then halved: no jaggies.
            more = 2 if scale.min() < 0.85 else 1
            grid = F.affine_grid(theta, [len(rows), 4, more * size, more * size], align_corners=False)
            layer = F.avg_pool2d(F.grid_sample(layer, grid, mode="bilinear", align_corners=False), more)
            at = torch.tensor(rows, device=device)
            canvas[at] = canvas[at] * (1 - layer[:, 3:]) + layer[:, :3]
        return canvas.clamp(0, 1) * 2 - 1
