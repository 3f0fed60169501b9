"""Encoders for images: ResNet-18, and a small one for small images on a CPU."""

from torch import Tensor, nn


class ResNet18(nn.Module):
    """ResNet-18 without its classifier: (n, C, S, S) images in, (n, 512) embeddings out.

    Parameters are named, shaped and initialised as torchvision's, so that a state dict of its
    ``resnet18`` fits without ``fc.weight`` and ``fc.bias``. The stem ``"standard"`` is a 7×7
    convolution of stride 2 and a max pool, which reduce a 224 px image to 56 px; ``"small"`` is a
    3×3 convolution of stride 1, which loses nothing of a 32 px image.
    """

    def __init__(self, channels: int = 3, stem: str = "standard") -> None:
        super().__init__()
        if stem not in ("standard", "small"):
            raise ValueError(f"stem must be 'standard' or 'small', got {stem!r}")
        small = stem == "small"
        kernel, stride = (3, 1) if small else (7, 2)
        self.conv1 = nn.Conv2d(channels, 64, kernel, stride, kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(64, 64, stride=1)
        self.layer2 = _stage(64, 128, stride=2)
        self.layer3 = _stage(128, 256, stride=2)
        self.layer4 = _stage(256, 512, stride=2)
        _initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.conv1(channels_last(images))
        features = self.maxpool(self.relu(self.bn1(features)))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            features = stage(features)
        return features.mean((2, 3))


class SmallEncoder(nn.Module):
    """Four convolutions for images of 8 to 32 px: (n, C, S, S) in, (n, 128) embeddings out.

    Above 16 px the first convolution has stride 2.
    """

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *_layer(channels, 16, stride=2 if size > 16 else 1),
            *_layer(16, 32, stride=2),
            *_layer(32, 64, stride=2),
            *_layer(64, 128, stride=2),
        )
        _initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(channels_last(images))
        return features.mean((2, 3))


def channels_last(images: Tensor) -> Tensor:
    """The same images in torch's channels-last layout, for a tenth to a quarter less time on a CPU.

    Not by ``contiguous``: of one channel, that leaves the strides by which layers tell the layout.

    >>> import torch
    >>> channels_last(torch.zeros(5, 1, 8, 8)).stride()
    (64, 1, 8, 1)
    """
    n, channels, height, width = images.shape
    rows = images.movedim(1, -1).flatten(2)  # (n, S, S · C)
    return rows.view(n, height, width, channels).movedim(-1, 1)


class _Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def forward(self, features: Tensor) -> Tensor:
        shortcut = features if self.downsample is None else self.downsample(features)
        features = self.relu(self.bn1(self.conv1(features)))
        result: Tensor = self.relu(self.bn2(self.conv2(features)) + shortcut)
        return result


def _stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(_Block(inputs, outputs, stride), _Block(outputs, outputs, 1))


def _layer(inputs: int, outputs: int, stride: int) -> tuple[nn.Module, nn.Module, nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
    return convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)


def _initialise(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
