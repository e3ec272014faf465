"""Writes images.txt: results of torchvision's transforms, and files of Pillow with the pixels that it decodes.

    python crates/pellucid-data/tests/data/reference/images.py

Each line has a name, the height, the width, the channels, and the bytes of the pixels in hexadecimal digits, row by row
with the channels of a pixel together. A line `file NAME` has the bytes of a file in place of the pixels.
"""

import io
import math
import pathlib

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode as Mode
from torchvision.transforms import functional as F

random = np.random.default_rng(0)
# A smooth image with noise, of 9 x 8 pixels.
y, x = np.mgrid[0:9, 0:8]
waves = [128 + 100 * np.sin(0.5 * x + 0.3 * y * c + c) + random.normal(0, 15, (9, 8)) for c in range(3)]
rgb = torch.tensor(np.clip(np.stack(waves), 0, 255).astype(np.uint8))
rgb[:, 0, 0] = torch.tensor([255, 255, 255])
rgb[:, 0, 1] = torch.tensor([7, 7, 7])
grey = rgb[:1]
rgba = torch.cat([rgb, 255 - rgb[:1]])
lines = []


def add(name, image):
    pixels = image.permute(1, 2, 0).numpy()
    lines.append(" ".join([name, *map(str, pixels.shape), pixels.tobytes().hex()]))


def sheared(image, x, y):
    degrees = [math.degrees(math.atan(x)), math.degrees(math.atan(y))]
    return F.affine(image, 0.0, [0, 0], 1.0, degrees, Mode.NEAREST, center=[0, 0])


for name, image in [("rgb", rgb), ("grey", grey), ("rgba", rgba)]:
    add(name, image)
for name, image in [("rgb", rgb), ("grey", grey)]:
    for mode, text in [(Mode.BILINEAR, "linear"), (Mode.BICUBIC, "cubic"), (Mode.NEAREST_EXACT, "nearest")]:
        for size, shape in [("small", [4, 3]), ("large", [13, 10]), ("wide", [9, 21]), ("high", [30, 8])]:
            if mode == Mode.NEAREST_EXACT:
                add(f"{name}_resize_{text}_{size}", F.resize(image, shape, mode))
            else:
                add(f"{name}_resize_{text}_{size}", F.pil_to_tensor(F.resize(F.to_pil_image(image), shape, mode)))
    add(f"{name}_shorter_side", F.pil_to_tensor(F.resize(F.to_pil_image(image), 5, Mode.BILINEAR)))
    add(f"{name}_center_crop", F.center_crop(image, [4, 5]))
    add(f"{name}_center_crop_large", F.center_crop(image, [12, 5]))
    add(f"{name}_crop", F.crop(image, -2, 3, 6, 8))
    for mode in ["constant", "edge", "reflect"]:
        add(f"{name}_pad_{mode}", F.pad(image, [1, 2, 3, 4], padding_mode=mode, **({"fill": 9} if mode == "constant" else {})))
    add(f"{name}_horizontal_flip", F.hflip(image))
    add(f"{name}_vertical_flip", F.vflip(image))
    for angle in [30, -100]:
        add(f"{name}_rotate_{angle}", F.rotate(image, angle, Mode.BILINEAR))
    add(f"{name}_rotate_nearest", F.rotate(image, 20, Mode.NEAREST))
    add(f"{name}_shear_x", sheared(image, 0.3, 0))
    add(f"{name}_shear_y", sheared(image, 0, -0.25))
    add(f"{name}_translate", F.affine(image, 0.0, [2, -1], 1.0, [0.0, 0.0], Mode.NEAREST))
    for factor in [0, 0.6, 1.7]:
        add(f"{name}_brightness_{factor}", F.adjust_brightness(image, factor))
        add(f"{name}_contrast_{factor}", F.adjust_contrast(image, factor))
        add(f"{name}_saturation_{factor}", F.adjust_saturation(image, factor))
        add(f"{name}_sharpness_{factor}", F.adjust_sharpness(image, factor))
    for factor in [-0.5, -0.1, 0.3, 0.5]:
        add(f"{name}_hue_{factor}", F.adjust_hue(image, factor))
    for size, sigma in [(3, 0.8), (7, 2.0)]:
        add(f"{name}_blur_{size}", F.gaussian_blur(image, size, sigma))
    add(f"{name}_erase", F.erase(image, 2, 3, 4, 2, torch.tensor(77, dtype=torch.uint8)))
    add(f"{name}_invert", F.invert(image))
    add(f"{name}_posterize", F.posterize(image, 3))
    add(f"{name}_solarize", F.solarize(image, 128))
    add(f"{name}_autocontrast", F.autocontrast(image))
    # Equalisation needs more pixels than bytes have values.
    large = image.repeat(1, 8, 8)[:, :32, :32]
    add(f"{name}_equalize", F.equalize(large))
    add(f"{name}_large", large)
add("rgb_grayscale", F.rgb_to_grayscale(rgb))
add("rgb_grayscale_3", F.rgb_to_grayscale(rgb, 3))


def add_file(name, image, **options):
    stream = io.BytesIO()
    image.save(stream, **options)
    lines.append(f"file {name} {stream.getvalue().hex()}")
    decoded = Image.open(io.BytesIO(stream.getvalue()))
    mode = {"P": "RGB", "LA": "RGBA", "1": "L", "CMYK": "RGB"}.get(decoded.mode, decoded.mode)
    if decoded.mode.startswith("I"):
        # Pillow does not reduce 16 bits to 8.
        pixels = (np.asarray(decoded).astype(int) >> 8).astype(np.uint8)
    else:
        pixels = np.asarray(decoded.convert(mode))
    add(f"decoded_{name}", torch.tensor(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1))


colors, plain = F.to_pil_image(rgb), F.to_pil_image(grey)
add_file("rgb.png", colors, format="PNG")
add_file("grey.png", plain, format="PNG")
add_file("rgba.png", F.to_pil_image(rgba), format="PNG")
add_file("palette.png", colors.quantize(16), format="PNG")
add_file("grey_alpha.png", plain.convert("LA"), format="PNG")
add_file("bits.png", plain.convert("1"), format="PNG")
add_file("sixteen.png", Image.fromarray(np.asarray(plain).astype(np.uint16) * 257), format="PNG")
add_file("rgb.jpg", colors, format="JPEG", quality=95, subsampling=0)
add_file("half.jpg", colors, format="JPEG", quality=80)
add_file("progressive.jpg", colors, format="JPEG", quality=90, progressive=True)
add_file("grey.jpg", plain, format="JPEG", quality=90)
pathlib.Path(__file__).with_name("images.txt").write_text("\n".join(lines) + "\n")
