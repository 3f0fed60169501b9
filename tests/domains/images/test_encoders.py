"""ResNet-18 by its known shapes, and the small encoder by what it learns."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, nn
from torch.nn import functional

from incontrast.data import digits
from incontrast.domains.images.domain import Images
from incontrast.domains.images.encoders import ResNet18, SmallEncoder, channels_last
from incontrast.randomness import seeded


def torchvision_shapes(channels: int = 3) -> dict[str, tuple[int, ...]]:
    """Names and shapes in the state dict of torchvision's resnet18, without fc."""

    def norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
        shapes = dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (width,))
        return {f"{name}.{key}": shape for key, shape in shapes.items()} | {
            f"{name}.num_batches_tracked": ()
        }

    shapes = {"conv1.weight": (64, channels, 7, 7)} | norm("bn1", 64)
    inputs = 64
    for stage, width in enumerate((64, 128, 256, 512), start=1):
        for block in range(2):
            name = f"layer{stage}.{block}"
            before = inputs if block == 0 else width
            shapes |= {f"{name}.conv1.weight": (width, before, 3, 3)} | norm(f"{name}.bn1", width)
            shapes |= {f"{name}.conv2.weight": (width, width, 3, 3)} | norm(f"{name}.bn2", width)
            if block == 0 and stage > 1:
                shapes |= {f"{name}.downsample.0.weight": (width, before, 1, 1)}
                shapes |= norm(f"{name}.downsample.1", width)
        inputs = width
    return shapes


def test_resnet18_has_the_names_and_shapes_of_torchvision() -> None:
    state = {name: tuple(value.shape) for name, value in ResNet18().state_dict().items()}
    assert state == torchvision_shapes()
    assert sum(value.numel() for value in ResNet18().parameters()) == 11_176_512


def test_resnet18_has_the_steps_of_torchvision() -> None:
    network = ResNet18()
    strides = {
        name: part.stride[0]
        for name, part in network.named_modules()
        if isinstance(part, nn.Conv2d) and part.stride != (1, 1)
    }
    assert strides == {"conv1": 2} | {
        f"layer{stage}.0.{part}": 2 for stage in (2, 3, 4) for part in ("conv1", "downsample.0")
    }
    assert isinstance(network.maxpool, nn.MaxPool2d)


@pytest.mark.parametrize(
    ("size", "kernel", "pool"), [(64, 3, nn.Identity), (65, 7, nn.MaxPool2d), (8, 3, nn.Identity)]
)
def test_the_stem_follows_the_size(size: int, kernel: int, pool: type[nn.Module]) -> None:
    network = Images(size).encoder()
    assert isinstance(network, ResNet18)
    assert network.conv1.kernel_size == (kernel, kernel)
    assert isinstance(network.maxpool, pool)


@pytest.mark.parametrize(("size", "channels"), [(4, 1), (32, 3), (72, 3), (65, 1)])
def test_resnet18_gives_512_numbers(size: int, channels: int) -> None:
    network = Images(size, channels).encoder()
    result = network(torch.randn(2, channels, size, size))
    assert result.shape == (2, 512)
    assert torch.isfinite(result).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_last_changes_the_layout_alone(channels: int) -> None:
    images = torch.randn(2, channels, 6, 5, generator=Generator())
    fast = channels_last(images)
    assert torch.equal(fast, images)
    assert fast.stride() == (30 * channels, 1, 5 * channels, channels)
    assert channels_last(fast).data_ptr() == fast.data_ptr()
    layers = nn.Conv2d(channels, 4, 3), nn.Conv2d(4, 4, 3)
    features = layers[1](layers[0](fast))
    assert features.is_contiguous(memory_format=torch.channels_last)


def test_an_unknown_stem_is_refused() -> None:
    with pytest.raises(ValueError, match="stem must be 'standard' or 'small', got 'tiny'"):
        ResNet18(3, "tiny")


@pytest.mark.parametrize("size", [4, 8, 16, 28, 32])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_small_encoder_gives_128_numbers(size: int, channels: int) -> None:
    network = SmallEncoder(channels, size)
    assert network(torch.randn(2, channels, size, size)).shape == (2, 128)
    assert sum(value.numel() for value in network.parameters()) < 100_000


def test_the_small_encoder_learns_digits_without_labels() -> None:
    """Nearest neighbours of held-out digits are of the same class nine times in ten."""
    data = digits()
    domain = Images(8, 1, encoder="small")
    collection = domain.collect(data.items)
    draws = Generator().manual_seed(0)
    order = torch.randperm(len(data), generator=draws)
    known, unseen = order[:1400], order[1400:]
    with seeded(0, "weights"):
        network = domain.encoder()
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)
    target = torch.arange(200).roll(100)
    for _ in range(10):
        for batch in known[torch.randperm(1400, generator=draws)].split(100):
            views = torch.cat(domain.views(collection.take(batch), draws))
            embeddings = functional.normalize(network(views))
            logits = (embeddings @ embeddings.T / 0.2).fill_diagonal_(-torch.inf)
            loss = functional.cross_entropy(logits, target)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    network.eval()
    with torch.no_grad():
        rows = domain.prepare(collection.take(torch.arange(len(data))))
        embeddings = functional.normalize(network(rows))
    nearest = (embeddings[unseen] @ embeddings[known].T).topk(5).indices
    labels = torch.from_numpy(data.labels)
    votes = labels[known][nearest].mode(dim=1).values
    assert (votes == labels[unseen]).double().mean() >= 0.9
