"""Draws schedules.svg: learning rate and loss against steps, from four initial learning rates.

python docs/figures/schedules.py
"""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import incontrast as ic

COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7")  # Okabe & Ito
STARTS = (1e-2, 1e-3, 1e-4, 1e-5)


def watched(learner: ic.Learner, new: torch.Tensor, start: float) -> list[ic.Progress]:
    seen: list[ic.Progress] = []
    strategy = ic.ICL(lr=ic.Learned(start=start))
    copy.deepcopy(learner).update(new, strategy=strategy, callbacks=[seen.append])
    return [progress for progress in seen if progress.finished is None]


def main() -> None:
    torch.set_num_threads(1)
    data = ic.data.digits()
    rows = torch.from_numpy(data.items.reshape(len(data), -1)).float()
    old, new = ic.streams.by_class(rows, (7, 8, 9), labels=data.labels)
    learner = ic.Learner(ic.Vectors(64), seed=0)
    learner.fit(old)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    lrs, losses = figure.subplots(1, 2)
    for start, colour in zip(STARTS, COLOURS, strict=True):
        run = watched(learner, new, start)
        steps = [progress.steps for progress in run]
        lrs.plot(steps, [p.lr for p in run], color=colour, label=f"from {start:g}")
        smooth, mean = [], run[0].loss
        for progress in run:
            mean += 0.05 * (progress.loss - mean)
            smooth.append(mean)
        losses.plot(steps, smooth, color=colour, label=f"from {start:g}")
    for axis, title in ((lrs, "learning rate"), (losses, "training loss (smoothed)")):
        axis.set(xscale="symlog", yscale="log", xlabel="step", title=title)
        axis.grid(alpha=0.25, which="both")
    lrs.legend(frameon=False, fontsize="small")
    figure.savefig(Path(__file__).with_suffix(".svg"))


if __name__ == "__main__":
    main()
