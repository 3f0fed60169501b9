"""A stream of 20 increments with a memory of a tenth of the data, against retraining on everything.

    python benchmarks/stream.py [--items 10000] [--seeds 0]

MNIST digits arrive at random in 20 parts. The learner is fitted on the first and updated with each
of the others; its reservoir keeps a tenth of all items. The true loss over everything seen is then
compared with that of an encoder that was trained from scratch on everything.
"""

from __future__ import annotations

import argparse

import torch

import incontrast as ic
import real_data

PARTS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, default=40, help="passes over each increment")
    parser.add_argument("--fit-epochs", type=int, default=60, help="of the fit and of retraining")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for seed in arguments.seeds:
        compare(arguments, seed)


def compare(arguments: argparse.Namespace, seed: int) -> None:
    digits = real_data.digits_of_mnist()
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(seed))
    everything = digits.select(order[: arguments.items]).items
    parts = list(ic.streams.in_batches(everything, PARTS, seed=None))
    domain = ic.Images(28, 1, encoder="small")
    fitting = ic.Retrain(max_epochs=arguments.fit_epochs)
    memory = ic.Reservoir(items=arguments.items // 10)

    learner = ic.Learner(domain, fit_strategy=fitting, memory=memory, seed=seed)
    seconds = learner.fit(parts[0]).seconds
    first_loss = learner.evaluation_loss(everything, sample=2048).all
    for number, part in enumerate(parts[1:], start=2):
        outcome = learner.update(part, strategy=ic.ICL(max_epochs=arguments.epochs))
        seconds += outcome.seconds
        if number % 5 == 0:
            loss = learner.evaluation_loss(everything, sample=2048).all
            print(f"part {number}: loss over everything {loss:.3f}", flush=True)
    stream = learner.evaluation_loss(everything, sample=2048).all

    retrained = ic.Learner(domain, fit_strategy=fitting, seed=seed)
    retraining = retrained.fit(everything)
    ceiling = retrained.evaluation_loss(everything, sample=2048).all
    print(
        f"seed {seed}: {arguments.items:,} digits, memory {len(learner.memory):,}\n"
        f"  after the first part     {first_loss:.3f}\n"
        f"  after {PARTS} parts           {stream:.3f}   {seconds:.0f} s in all, "
        f"{outcome.seconds:.1f} s for the last update\n"
        f"  retraining on everything {ceiling:.3f}   {retraining.seconds:.0f} s\n"
        f"  stream / retraining      {stream / ceiling:.3f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
