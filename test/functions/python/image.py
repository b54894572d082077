"""Turns, mirrors and shrinks an image, and packs it as JPEG and PNG."""

import io

from PIL import Image, ImageFilter
from serve import serve


def packed(image, kind):
    out = io.BytesIO()
    image.save(out, kind)
    return out.getvalue()


def answer(seed):
    width, height = 320 + seed % 5 * 64, 240 + seed % 3 * 48
    gray = bytes((x * 3 + y * 5 + seed) & 255 for y in range(height) for x in range(width))
    image = Image.frombytes("L", (width, height), gray)
    turned = image.transpose(Image.Transpose.ROTATE_90).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    again = Image.open(io.BytesIO(packed(turned, "PNG")))
    small = again.convert("RGB").filter(ImageFilter.BLUR)
    small.thumbnail((100, 100))
    jpeg = Image.open(io.BytesIO(packed(small, "JPEG")))
    jpeg.load()
    spots = [(n * 37 % turned.width, n * 53 % turned.height) for n in range(32)]
    return {"size": again.size, "spots": [again.getpixel(spot) for spot in spots], "longest": max(jpeg.size)}


serve(answer)
