"""Drift of an adopted model whose views are not the domain's: by views, and by items as they are.

    python benchmarks/drift_adopted.py

A small ResNet that a plain script trains on 900 digits 0 to 6, with shifts and noise as views, is
adopted with the default views of images. Power: ten draws of digits 7 to 9. False alarms: ten
draws of other digits 0 to 6.
"""

from __future__ import annotations

import time

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

import incontrast as ic
from incontrast.evaluate import drift as measured

DRAWS, WIDTH = 10, 16


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))).relu()


def trained(pixels: Tensor) -> nn.Module:
    """Somebody's script."""
    stem = nn.Conv2d(1, WIDTH, 3, padding=1, bias=False), Block(WIDTH)
    ends = nn.Conv2d(WIDTH, 2 * WIDTH, 2, stride=2), Block(2 * WIDTH)
    model = nn.Sequential(*stem, *ends, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    head = nn.Linear(2 * WIDTH, 32)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=2e-3)

    def view(images: Tensor) -> Tensor:
        shift = torch.randint(-1, 2, (2,)).tolist()
        return images.roll(shift, (2, 3)) + 0.2 * torch.randn(images.shape)

    for _ in range(4):
        for batch in torch.randperm(len(pixels)).split(128):
            images = (pixels[batch] / 255 - 0.5) / 0.5
            a, b = (normalize(head(model(view(images)))) for _ in range(2))
            loss = cross_entropy(a @ b.T / 0.1, torch.arange(len(batch)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    digits = load_digits()
    pixels = torch.tensor(digits.images * 255 / 16).byte()[:, None]
    old, new = pixels[digits.target < 7], pixels[digits.target >= 7]
    old = old[torch.randperm(len(old), generator=torch.Generator().manual_seed(0))]
    domain = ic.Images(8, 1, mean=0.5, std=0.5)
    learner = ic.Learner.from_encoder(trained(old[:900]), domain, seen=old[:900])
    print(time.strftime("%Y-%m-%d"))
    for how, measured.RECOGNISED in (("views", 0.0), ("as they are", 1.1)):
        for count in (20, 50):
            found = []
            for learner.seed in range(DRAWS):
                draws = torch.Generator().manual_seed(learner.seed)
                for items in (new, old[900:]):
                    drawn = items[torch.randperm(len(items), generator=draws)[:count]]
                    found.append(learner.drift(drawn, forecast=False).drifted)
            power, alarms = sum(found[::2]), sum(found[1::2])
            about = f"drift in {power} of {DRAWS}, false alarms in {alarms} of {DRAWS}"
            print(f"{how:>12}, {count} new items: {about}", flush=True)


if __name__ == "__main__":
    main()
