"""torchvision's side of src/bin/augmentation.rs: images per second, the largest of ten rounds, on one thread.

    taskset -c 0 python bench/augmentation.py

It runs the transforms of torchvision.transforms.v2 on images of Pillow, and on tensors of bytes.
"""
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np
import torch
from PIL import Image
from torchvision.transforms import v2

IMAGES, ROUNDS = 1024, 10
torch.set_num_threads(1)
pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, 32, 32, 3), dtype=np.uint8)
augment = [v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip(), v2.ColorJitter(0.4, 0.4, 0.4, 0.1)]
normalize = [v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))]
pillow = v2.Compose([*augment, v2.ToImage(), *normalize])
tensors = v2.Compose([*augment, *normalize])

for name, transform, images in [
    ("Pillow", pillow, [Image.fromarray(image) for image in pixels]),
    ("tensors", tensors, list(torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous())),
]:
    least = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for image in images:
            transform(image)
        least = min(least, time.perf_counter() - start)
    print(f"crop, flip, colour jitter, tensor, normalise ({name}): {IMAGES / least:.0f} images/s")
