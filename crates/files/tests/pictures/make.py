"""Makes the pictures beside this file and expected.json, what Pillow 13 sees in them.

Run in an environment with pillow, numpy and safetensors:
    python make.py ../../../../tests/gold/nodes/files.safetensors

Two sets: `load/` are inputs that must give the LoadImage goldens (the originals are not kept, so they are made from the
results), `odd/` are unusual files of every format.
"""

import io
import json
import os
import struct
import sys
import zlib

import numpy as np
from PIL import Image, ImageFile, ImageOps, ImageSequence
from safetensors import safe_open

HERE = os.path.dirname(os.path.abspath(__file__))
gold = safe_open(sys.argv[1], "np")


def u8(key):
    return np.round(gold.get_tensor(key) * 255).astype(np.uint8)


def put(name, data):
    path = os.path.join(HERE, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)


def save(name, image, fmt, **options):
    buf = io.BytesIO()
    image.save(buf, fmt, **options)
    put(name, buf.getvalue())


def mask(key):
    return 255 - np.round(gold.get_tensor(key)[0] * 255).astype(np.uint8)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(w, h, depth, colour, rows, extra=b""):
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, depth, colour, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + r for r in rows)))
    return b"\x89PNG\r\n\x1a\n" + head + extra + data + chunk(b"IEND", b"")


def indexed(rgb, alpha=None):
    """A palette image of these colours (and alphas), palette and transparency as PNG stores them."""
    table = {}
    flat = rgb.reshape(-1, 3)
    al = np.full(len(flat), 255) if alpha is None else alpha.reshape(-1)
    rows = np.array([table.setdefault((*map(int, c), int(a)), len(table)) for c, a in zip(flat, al)], np.uint8)
    h, w = rgb.shape[:2]
    extra = chunk(b"PLTE", bytes(v for c in table for v in c[:3]))
    if alpha is not None:
        extra += chunk(b"tRNS", bytes(c[3] for c in table))
    return png(w, h, 8, 3, [r.tobytes() for r in rows.reshape(h, w)], extra)


def load_set():
    rgb = u8("LoadImage/13/0.0")[0]
    rgba = np.dstack([u8("LoadImage/14/0.0")[0], mask("LoadImage/14/1.0")])
    save("load/rgb.png", Image.fromarray(rgb), "PNG")
    save("load/rgb.bmp", Image.fromarray(u8("LoadImage/12/0.0")[0]), "BMP")
    save("load/lossless.webp", Image.fromarray(u8("LoadImage/8/0.0")[0]), "WEBP", lossless=True)
    save("load/rgba.png", Image.fromarray(rgba), "PNG")
    save("load/gray.png", Image.fromarray(u8("LoadImage/5/0.0")[0, :, :, 0]), "PNG")
    la = np.dstack([u8("LoadImage/7/0.0")[0, :, :, 0], mask("LoadImage/7/1.0")])
    save("load/gray_alpha.png", Image.fromarray(la), "PNG")
    put("load/palette.png", indexed(u8("LoadImage/9/0.0")[0]))
    put("load/palette_trns.png", indexed(u8("LoadImage/10/0.0")[0], mask("LoadImage/10/1.0")))
    save("load/bilevel.png", Image.fromarray(u8("LoadImage/2/0.0")[0, :, :, 0] > 127), "PNG")
    # 255 can come from any value from there on.
    g = u8("LoadImage/6/0.0")[0, :, :, 0].astype(np.uint16)
    g[g == 255] = np.linspace(255, 65535, int((g == 255).sum())).astype(np.uint16)
    save("load/gray16.png", Image.fromarray(g), "PNG")
    exif = Image.Exif()
    exif[0x0112] = 6
    upright = Image.fromarray(u8("LoadImage/4/0.0")[0])
    save("load/exif_rot6.png", upright.transpose(Image.Transpose.ROTATE_90), "PNG", exif=exif)
    exif = Image.Exif()
    exif[0x0112] = 3
    upright = Image.fromarray(np.dstack([u8("LoadImage/3/0.0")[0], mask("LoadImage/3/1.0")]))
    save("load/exif_rot3_rgba.png", upright.transpose(Image.Transpose.ROTATE_180), "PNG", exif=exif)
    frames = [Image.fromarray(f) for f in u8("LoadImage/1/0.0")]
    save("load/anim.png", frames[0], "PNG", save_all=True, append_images=frames[1:])
    frames = []
    for f in u8("LoadImage/0/0.0"):
        colours, index = np.unique(f.reshape(-1, 3), axis=0, return_inverse=True)
        im = Image.fromarray(index.reshape(f.shape[:2]).astype(np.uint8)).convert("P")
        im.putpalette(colours.astype(np.uint8).tobytes())
        frames.append(im)
    save("load/anim.gif", frames[0], "GIF", save_all=True, append_images=frames[1:])


def odd_set():
    rng = np.random.default_rng(7)

    def noise(*shape):
        return rng.integers(0, 256, shape, dtype=np.uint8)

    def smooth(h, w, c):
        y, x = np.mgrid[0:h, 0:w]
        return np.dstack([(x * 255 // w), (y * 255 // h), ((x + y) * 255 // (w + h)), np.full((h, w), 40)][:c]).astype(np.uint8)

    put("odd/rgb16.png", png(2, 1, 16, 2, [struct.pack(">6H", 0x1234, 0x80FF, 0xFFFF, 255, 256, 0)]))
    put("odd/rgba16.png", png(2, 1, 16, 6, [struct.pack(">8H", 0x1234, 0x80FF, 0xFFFF, 255, 256, 0, 0x7FFF, 0x8000)]))
    put("odd/la16.png", png(2, 1, 16, 4, [struct.pack(">4H", 0x1234, 0x80FF, 0xFFFF, 255)]))
    put("odd/grey2.png", png(5, 2, 2, 0, [bytes([0b00011011, 0b01000000]), bytes([0b11100100, 0])]))
    put("odd/grey4.png", png(3, 1, 4, 0, [bytes([0x3F, 0x80])]))
    put("odd/grey_key.png", png(2, 1, 8, 0, [bytes([3, 9])], chunk(b"tRNS", struct.pack(">H", 3))))
    put("odd/bilevel_key.png", png(3, 1, 1, 0, [bytes([0b10100000])], chunk(b"tRNS", struct.pack(">H", 1))))
    put("odd/rgb_key.png", png(2, 1, 8, 2, [bytes([3, 4, 5, 9, 9, 9])], chunk(b"tRNS", struct.pack(">3H", 3, 4, 5))))
    pal = chunk(b"PLTE", bytes([10, 20, 30, 40, 50, 60]))
    put("odd/palette_short.png", png(2, 1, 8, 3, [bytes([0, 5])], pal))
    put("odd/palette2_trns.png", png(5, 1, 2, 3, [bytes([0b00010001, 0b01000000])], pal + chunk(b"tRNS", bytes([0]))))
    for n in (2, 4, 5, 7, 8):
        exif = Image.Exif()
        exif[0x0112] = n
        save(f"odd/rot{n}.png", Image.fromarray(noise(3, 5, 4)), "PNG", exif=exif)
        save(f"odd/rot{n}.webp", Image.fromarray(noise(3, 5, 3)), "WEBP", lossless=True, exif=exif)
    exif = Image.Exif()
    exif[0x0112] = 6
    save("odd/rot6.jpg", Image.fromarray(smooth(24, 40, 3)), "JPEG", quality=95, exif=exif)
    save("odd/grey.jpg", Image.fromarray(smooth(16, 24, 1)[:, :, 0]), "JPEG", quality=95)
    save("odd/subsampled.jpg", Image.fromarray(smooth(30, 41, 3)), "JPEG", quality=90, progressive=True)
    save("odd/cmyk.jpg", Image.fromarray(smooth(16, 16, 4), "CMYK"), "JPEG", quality=95)
    cut = io.BytesIO()
    Image.fromarray(smooth(64, 64, 3)).save(cut, "JPEG", quality=95)
    put("odd/cut.jpg", cut.getvalue()[:-200])
    cut = io.BytesIO()
    Image.fromarray(noise(16, 16, 3)).save(cut, "PNG")
    put("odd/cut.png", cut.getvalue()[:-300])
    # Animations.
    frames = [Image.fromarray(noise(5, 6, 4)) for _ in range(3)]
    for f in frames:
        f.putpixel((0, 0), (1, 2, 3, 0))
    for d in range(3):
        for b in range(2):
            save(f"odd/anim_d{d}b{b}.png", frames[0], "PNG", save_all=True, append_images=frames[1:], disposal=d, blend=b)
    small = []
    for i in range(3):
        a = np.zeros((5, 6, 4), np.uint8)
        a[i : i + 2, i : i + 3] = noise(2, 3, 4)
        small.append(Image.fromarray(a))
    save("odd/anim_parts.png", small[0], "PNG", save_all=True, append_images=small[1:], disposal=[1, 2, 0], blend=[0, 1, 1])
    save("odd/anim_default.png", frames[0], "PNG", save_all=True, append_images=frames[1:], default_image=True)
    for d in range(4):
        save(f"odd/anim_d{d}.gif", frames[0], "GIF", save_all=True, append_images=frames[1:], disposal=d)
        save(f"odd/parts_d{d}.gif", small[0], "GIF", save_all=True, append_images=small[1:], disposal=d)
        rgb = [f.convert("RGB") for f in small]
        save(f"odd/rgb_d{d}.gif", rgb[0], "GIF", save_all=True, append_images=rgb[1:], disposal=d)
    save("odd/grey.gif", Image.fromarray(noise(4, 4)), "GIF")
    save("odd/still.gif", Image.fromarray(noise(4, 4, 3)), "GIF", interlace=1)
    save("odd/anim.webp", frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True, exact=True)
    save("odd/parts.webp", small[0], "WEBP", save_all=True, append_images=small[1:], lossless=True, exact=True, allow_mixed=True)
    save("odd/lossy.webp", Image.fromarray(smooth(20, 30, 3)), "WEBP", quality=80)
    save("odd/lossy_alpha.webp", Image.fromarray(np.dstack([smooth(20, 30, 3), noise(20, 30)])), "WEBP", quality=80)
    big = [Image.fromarray(np.dstack([np.roll(smooth(20, 30, 3), i, 1), noise(20, 30)])) for i in range(2)]
    save("odd/lossy_anim.webp", big[0], "WEBP", save_all=True, append_images=big[1:], quality=60)
    # BMP and TIFF.
    save("odd/grey.bmp", Image.fromarray(noise(3, 5)), "BMP")
    save("odd/bilevel.bmp", Image.fromarray(noise(3, 5) > 127), "BMP")
    save("odd/rgb32.bmp", Image.fromarray(noise(3, 5, 4)), "BMP")
    save("odd/grey.tif", Image.fromarray(noise(3, 5)), "TIFF")
    save("odd/bilevel.tif", Image.fromarray(noise(3, 11) > 127), "TIFF")
    save("odd/grey16.tif", Image.fromarray(np.array([[0, 12, 300, 65535]], np.uint16)), "TIFF")
    save("odd/grey32.tif", Image.fromarray(np.array([[0, 12, 300, 65535, 100000, -5]], np.int32)), "TIFF")
    save("odd/float.tif", Image.fromarray(np.array([[0, 12.6, 300, -4]], np.float32)), "TIFF")
    save("odd/rgb.tif", Image.fromarray(noise(3, 5, 3)), "TIFF", compression="tiff_lzw")
    save("odd/rgba.tif", Image.fromarray(noise(3, 5, 4)), "TIFF", compression="tiff_deflate")
    save("odd/cmyk.tif", Image.fromarray(noise(3, 5, 4), "CMYK"), "TIFF")
    save("odd/palette.tif", Image.fromarray(noise(3, 5, 3)).quantize(8), "TIFF")
    pages = [Image.fromarray(noise(3, 5, 3)) for _ in range(3)]
    save("odd/pages.tif", pages[0], "TIFF", save_all=True, append_images=pages[1:])


def seen(path):
    """Frames as the reference's loader sees them: mode, size, RGB, its alpha (or none), RGBA."""
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    out = []
    for frame in ImageSequence.Iterator(Image.open(path)):
        i = ImageOps.exif_transpose(frame)
        mode = i.mode
        if mode == "I":
            i = i.point(lambda v: v * (1 / 255))
        alpha = None
        if "A" in i.getbands():
            alpha = np.array(i.getchannel("A"))
        elif i.mode == "P" and "transparency" in i.info:
            alpha = np.array(i.convert("RGBA").getchannel("A"))
        out.append(
            {
                "mode": mode,
                "size": list(i.size),
                "rgb": np.array(i.convert("RGB")).tobytes().hex(),
                "alpha": None if alpha is None else alpha.tobytes().hex(),
                "rgba": np.array(i.convert("RGBA")).tobytes().hex(),
            }
        )
    return out


load_set()
odd_set()
expected = {}
for folder in ("load", "odd"):
    for name in sorted(os.listdir(os.path.join(HERE, folder))):
        expected[f"{folder}/{name}"] = seen(os.path.join(HERE, folder, name))
with open(os.path.join(HERE, "expected.json"), "w") as f:
    json.dump(expected, f, indent=0)
    f.write("\n")
