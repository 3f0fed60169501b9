"""A model that a plain torch script trained is adopted and updated: how far to retraining?

    python benchmarks/adopt.py run --seed 0 1 2
    python benchmarks/adopt.py run --model vit --epochs 60  # from a folder (extra hf)
    python benchmarks/adopt.py show

On digits (0 to 6 first, 7 to 9 later), by the measures of benchmarks/parity.py. ``plain`` knows
nothing of incontrast: SimCLR's loss, a linear head, shifts and noise as views. The encoder and its
head are adopted with the old digits, then updated with a share of retraining's forward passes, or
not at all. Retraining begins anew, for as many epochs as the script had. The same is done by the
two commands of the command line: a ResNet-18 by an import path and its weights in a file, a ViT
from the folder that save_pretrained has written.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

import incontrast as ic
from parity import LONG, measure
from parity_sets import Problem, digits_by_class

ROWS = Path(__file__).parent / "results" / "adopt.jsonl"
ALPHA = 0.3
SHARES = (0.12, 0.25)
MEAN = STD = 0.5
VIEWS = ic.ImageViews(flip=0.0, scale=(0.4, 1.0))
DOMAIN = ic.Images(8, 1, mean=(MEAN,), std=(STD,), views=VIEWS)
RESNET = ic.ImportPath(
    "incontrast.domains.images.encoders:ResNet18", {"channels": 1, "stem": "small"}
)


def vit() -> nn.Module:
    """A model of transformers with new weights."""
    from transformers import ViTConfig, ViTModel

    size = {"hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
    image = {"intermediate_size": 192, "image_size": 8, "patch_size": 2, "num_channels": 1}
    return ViTModel(ViTConfig(**size, **image), add_pooling_layer=False)


def plain(
    model: nn.Module, width: int, pixels: Tensor, epochs: int, embed: Callable[..., Tensor]
) -> nn.Module:
    """Somebody's training script; returns the head."""
    head = nn.Linear(width, 128)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-3)

    def view(images: Tensor) -> Tensor:
        shift = torch.randint(-1, 2, (2,)).tolist()
        return images.roll(shift, (2, 3)) + 0.3 * torch.randn(images.shape)

    for _ in range(epochs):
        for batch in torch.randperm(len(pixels)).split(128):
            images = (pixels[batch] / 255 - MEAN) / STD
            a, b = (normalize(head(embed(model, view(images)))) for _ in range(2))
            loss = cross_entropy(a @ b.T / 0.1, torch.arange(len(batch)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return head


def run(name: str, seed: int, epochs: int, file: Path) -> None:
    problem = digits_by_class(ALPHA, seed)._replace(domain=DOMAIN)
    pixels = torch.from_numpy(np.asarray(problem.old.items)).view(-1, 1, 8, 8)
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as place:
        if name == "vit":
            model = vit()
            head = plain(
                model, 96, pixels, epochs, lambda m, x: m(pixel_values=x).last_hidden_state[:, 0]
            )
            model.save_pretrained(place)
            encoder: Any = ic.pretrained(place, pooling="first")
        else:
            model = encoder = RESNET()
            head = plain(model, 512, pixels, epochs, lambda m, x: m(x))
        adopted = ic.Learner.from_encoder(
            encoder,
            DOMAIN,
            seen=problem.old.items,
            head=head,
            keep_neighbours=None,  # it was trained on these, by views
            seed=seed,
        )
        domain = replace(DOMAIN, encoder=vit_vectors if name == "vit" else RESNET)
        retrain = ic.Retrain(batch_size=128, lr=2e-3, max_epochs=epochs, patience=None)
        anew = ic.Learner(domain, fit_strategy=retrain, head="linear", seed=seed)
        whole = np.concatenate([problem.old.items, problem.new.items])
        ceiling = anew.fit(whole).forward_passes
        rows = {("no update", 0.0): adopted, ("retraining", 1.0): anew}
        for share in SHARES:
            passes = round(share * ceiling)
            twin = copy.deepcopy(adopted)
            budget = ic.Budget(forward_passes=passes)
            twin.update(problem.new.items, strategy=ic.ICL(**LONG), budget=budget)
            rows["ICL", share] = twin
            folder = Path(place) / f"{share}"
            folder.mkdir()
            if name == "vit":
                network = ["--encoder", place, "--encoder-args", '{"pooling": "first"}']
            else:
                save_file(model.state_dict(), folder / "weights.safetensors")
                network = ["--encoder", RESNET.path, "--encoder-args", json.dumps(RESNET.arguments)]
                network += ["--weights", str(folder / "weights.safetensors")]
            save_file(head.state_dict(), folder / "head.safetensors")
            network += ["--head", "torch.nn:Linear", "--head-args", '{"out_features": 128}']
            network += ["--head-weights", str(folder / "head.safetensors")]
            rows["ICL, command line", share] = by_commands(network, problem, passes, seed, folder)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as target:
            for (strategy, share), learner in rows.items():
                row = {
                    "model": name,
                    "epochs": epochs,
                    "seed": seed,
                    "strategy": strategy,
                    "share": share,
                }
                row |= {**measure(learner, problem, ALPHA), "settings": repr(learner.strategy)}
                target.write(json.dumps(row | {"date": time.strftime("%Y-%m-%d")}) + "\n")


def vit_vectors() -> nn.Module:
    return ic.Pooled(vit(), output="last_hidden_state", pooling="first")


def by_commands(
    network: list[str], problem: Problem, passes: int, seed: int, folder: Path
) -> ic.Learner:
    """What ``incontrast adopt`` and ``incontrast update`` make of it."""
    for part, items in (("old", problem.old.items), ("new", problem.new.items)):
        (folder / part).mkdir()
        for number, image in enumerate(np.asarray(items)):
            Image.fromarray(image.reshape(8, 8)).save(folder / part / f"{number:05}.png")
    images = ["--size", "8", "--channels", "1", "--mean", str(MEAN), "--std", str(STD)]
    views = ["--flip", str(VIEWS.flip), "--crop", str(VIEWS.scale[0])]
    settings = ["--set", f"seed={seed}", "--set", "keep_neighbours=none"]
    settings += ["--set", f"strategy.max_epochs={LONG['max_epochs']}"]
    space = ["-w", str(folder / "space")]
    for words in (
        ["adopt", str(folder / "old"), *space, *images, *network, *views, *settings],
        ["update", str(folder / "new"), *space, "--forward-passes", str(passes), "--force"],
    ):
        command = [sys.executable, "-m", "incontrast", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr}")
    return ic.Workspace.open(folder / "space").learner()


def show(file: Path) -> None:
    """Medians over seeds, as a table in Markdown."""
    found: dict[tuple[str, float, str], list[dict[str, Any]]] = {}
    for line in file.read_text().splitlines():
        row = json.loads(line)
        place = (f"{row['model']}, {row['epochs']} epochs", row["share"], row["strategy"])
        found.setdefault(place, []).append(row["unseen"])
    names = ("knn_old", "knn_new", "precision_old", "precision_new")
    print("| model | strategy | share | seeds |", " | ".join(names), "|")
    print("|---" * (4 + len(names)) + "|")
    for (model, share, strategy), rows in sorted(found.items()):
        cells = [f"{statistics.median(row[name] for row in rows):.3f}" for name in names]
        print(f"| {model} | {strategy} | {share:.0%} | {len(rows)} |", " | ".join(cells), "|")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["run", "show"])
    parser.add_argument("--model", choices=["resnet18", "vit"], default="resnet18")
    parser.add_argument("--epochs", type=int, default=10, help="of the script, and of retraining")
    parser.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rows", type=Path, default=ROWS)
    arguments = parser.parse_args()
    if arguments.what == "show":
        show(arguments.rows)
        return
    torch.set_num_threads(1)
    for seed in arguments.seed:
        run(arguments.model, seed, arguments.epochs, arguments.rows)


if __name__ == "__main__":
    main()
