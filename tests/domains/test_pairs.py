"""Pairs that a user brings, and views by a function of one item."""

from __future__ import annotations

import random
import threading
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import incontrast as ic

DIGITS = ic.data.digits().items[:60]


def test_pairs_keep_the_contract_of_a_domain(blobs) -> None:
    rows = blobs(48)
    ic.check_domain(ic.Pairs(ic.Vectors(8)), (rows, rows + 0.1))
    images = ic.Pairs(ic.Images(size=8, channels=1, encoder="small"))
    ic.check_domain(images, (DIGITS[:30], DIGITS[30:]))


def test_single_items_come_as_the_json_of_their_kind() -> None:
    content = BytesIO()
    Image.fromarray(DIGITS[0].astype(np.uint8)).save(content, "png")
    domain = ic.Pairs(ic.Images(size=8, channels=1, encoder="small"))
    (pair,) = domain.pack(domain.collect_json([content.getvalue()]), torch.arange(1))
    assert pair == domain.pack(domain.collect(DIGITS[:1]), torch.arange(1))[0]


def test_what_is_learned_is_that_pairs_belong_together(tmp_path: Path) -> None:
    """The second item of a pair has its features in another order: only the pairs tell."""
    draws = torch.Generator().manual_seed(0)
    first = torch.randn(200, 6, generator=draws)
    second = first[:, [3, 4, 5, 0, 1, 2]]
    learner = ic.Learner(
        ic.Pairs(ic.Vectors(6), augment=False), fit_strategy=ic.Retrain(max_epochs=30)
    )
    outcome = learner.fit((first[:150], second[:150]))
    assert outcome.loss.after.all < outcome.loss.before.all

    def found(model: ic.Learner) -> float:
        left, right = (
            torch.nn.functional.normalize(model.embed(side[150:])) for side in (first, second)
        )
        return ((left @ right.T).argmax(dim=1) == torch.arange(50)).float().mean().item()

    assert found(learner) > 0.5, "one in 50 by chance"
    learner.update((first[150:], second[150:]), strategy=ic.ICL(max_epochs=1, epoch_steps=1))
    learner.save(tmp_path / "model")
    assert torch.equal(ic.Learner.load(tmp_path / "model").embed(first), learner.embed(first))
    with pytest.raises(ValueError, match="as many first items as second ones, got 3 and 2"):
        learner.update((first[:3], second[:2]))


def fitted(views) -> torch.Tensor:
    domain = ic.Images(size=8, channels=1, encoder="small", views=views)
    learner = ic.Learner(domain, fit_strategy=ic.Retrain(max_epochs=1, batch_size=16))
    learner.fit(DIGITS)
    return learner.embed(DIGITS)


def test_a_function_of_an_item_runs_in_threads_and_draws_by_the_seed() -> None:
    threads = set()

    def dimmed(item: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        threads.add(threading.current_thread().name)
        return item * torch.rand((), generator=generator)

    first, second = fitted(ic.PerItem(dimmed, workers=2)), fitted(ic.PerItem(dimmed, workers=3))
    assert torch.equal(first, second)
    assert threading.main_thread().name not in threads


def test_what_draws_from_global_generators_is_reproducible_too() -> None:
    def noisy(item: torch.Tensor) -> np.ndarray:
        factor = random.random() * np.random.rand() * torch.rand(()).item()  # noqa: NPY002
        return item.numpy() * factor

    state = random.getstate()
    assert torch.equal(fitted(ic.PerItem(noisy)), fitted(ic.PerItem(noisy)))
    assert random.getstate() == state
    module = ic.PerItem(torch.nn.Dropout(0.2))
    assert torch.equal(fitted(module), fitted(module))


def test_a_crop_of_much_and_one_of_little() -> None:
    seen: list[str] = []

    def named(name: str):
        def view(batch: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
            seen.append(name)
            return batch

        return view

    domain = ic.Images(size=8, channels=1, encoder="small", views=(named("one"), named("two")))
    domain.views(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.Generator())
    assert seen == ["one", "two"]
    crops = (ic.ImageViews(scale=(0.4, 1.0)), ic.ImageViews(scale=(0.05, 0.4)))
    assert fitted(crops).isfinite().all()
    with pytest.raises(ValueError, match="views must be two at least, one for each side, got 1"):
        ic.Images(size=8, views=crops[:1])


def test_of_more_crops_each_batch_has_one_beside_the_first(tmp_path) -> None:
    seen: list[str] = []

    def named(name: str):
        def view(batch: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
            seen.append(name)
            return batch

        return view

    many = tuple(map(named, "abc"))
    domain = ic.Images(size=8, channels=1, encoder="small", views=many)
    draws = torch.Generator().manual_seed(0)
    for _ in range(40):
        domain.views(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), draws)
    assert set(seen[::2]) == {"a"}
    assert {*seen[1::2]} == {"b", "c"}
    large, little = ic.ImageViews(scale=(0.4, 1.0)), ic.ImageViews(scale=(0.05, 0.4))
    crops = (large, large, little, little)
    ic.check_domain(ic.Images(size=8, channels=1, encoder="small", views=crops), DIGITS)
    learner = ic.Learner(
        ic.Images(size=8, channels=1, encoder="small", views=crops),
        fit_strategy=ic.Retrain(max_epochs=1, batch_size=16),
    )
    learner.fit(DIGITS)
    learner.save(tmp_path / "model")
    assert ic.Learner.load(tmp_path / "model").domain.arguments()["views"] == crops


def test_albumentations_is_seeded_by_its_own_generators() -> None:
    albumentations = pytest.importorskip("albumentations")
    transform = albumentations.Compose(
        [albumentations.RandomResizedCrop(size=(8, 8)), albumentations.HorizontalFlip()]
    )
    domain = ic.Images(size=8, channels=1, encoder="small", views=ic.PerItem(transform))
    ic.check_domain(domain, DIGITS)


def test_what_has_its_own_generators_is_seeded_as_albumentations_is() -> None:
    class Compose:
        """Called as albumentations' is."""

        def set_random_seed(self, seed: int) -> None:
            self.draws = np.random.default_rng(seed)

        def __call__(self, *, image: np.ndarray) -> dict[str, np.ndarray]:
            assert image.shape == (8, 8, 1)
            return {"image": image * self.draws.random()}

    views = ic.PerItem(Compose())
    first, second = fitted(views), fitted(views)
    assert torch.equal(first, second)
    batch = views(torch.ones(4, 1, 8, 8), torch.Generator().manual_seed(0))
    assert batch.shape == (4, 1, 8, 8)
    assert len(batch.amax(dim=(1, 2, 3)).unique()) == 4, "each item has its own draw"


def test_bad_functions_of_an_item() -> None:
    with pytest.raises(TypeError, match="function must take an item, got 3"):
        ic.PerItem(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="workers"):
        ic.PerItem(abs, workers=0)
    ragged = ic.PerItem(lambda item: item[: 1 + int(torch.randint(2, ()))])
    with pytest.raises(ValueError, match=r"must have one shape, got \(1,\) and \(2,\)"):
        ragged(torch.zeros(64, 2), torch.Generator().manual_seed(0))
