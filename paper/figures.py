"""The paper's figures from rows: accuracies, the sweep of α, curves of losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from incontrast.report.page import Figure
from paper.drawing import SERIES, svg
from paper.names import GRAPHS, IMAGES, RETRAINING, set_title, strategy_title
from paper.summary import Place, Summary

COLOURS = {
    "retraining": SERIES[0],
    "icl": SERIES[1],
    "paper": SERIES[2],
    "warm-start": SERIES[3],
    "fine-tuning": SERIES[4],
    "replay": SERIES[5],
    "distillation": SERIES[6],
    "paper-no-m-lrl": SERIES[2],
    "paper-no-m": SERIES[5],
    "no-update": SERIES[0],
    "icl-learned": SERIES[7],
}
SWEPT = {"icl": "-", "icl-learned": "-.", "paper": "--"}
CURVES = (
    *("retraining", "fine-tuning", "replay", "distillation"),
    *("paper", "warm-start", "icl-learned", "icl"),
)


def accuracy_figure(summary: Summary) -> Figure | None:
    """SVM accuracy on old and new data: a dot for each growth ratio."""
    sets = [name for name in (*IMAGES, *GRAPHS) if any(p.set == name for p in summary.places)]
    if not sets:
        return None
    names = [name for name in summary.strategies if name != "no-update"]

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, len(sets), sharey=True, squeeze=False)[0]
        for axis, data in zip(axes, sets, strict=True):
            for row, name in enumerate(reversed(names)):
                for place in (p for p in summary.places if p.set == data and p.usual):
                    for part, marker, shift in (("old", "o", 0.14), ("new", "^", -0.14)):
                        found = summary.accuracy(place, name, f"svm_{part}").value
                        if found is not None:
                            axis.plot(
                                [found],
                                [row + shift],
                                marker,
                                color=SERIES[1] if part == "old" else SERIES[2],
                                markersize=5,
                                alpha=0.85,
                            )
            axis.set_title(set_title(data))
            axis.set_xlabel("SVM accuracy")
            axis.locator_params(axis="x", nbins=4)
            axis.grid(True, axis="both")
            axis.set_yticks(range(len(names)), [strategy_title(n) for n in reversed(names)])

    return Figure(
        title="SVM accuracy on old and new data",
        svg=svg(
            draw, name="accuracy", title="SVM accuracy by strategy", height=0.34 * len(names) + 1
        ),
        caption="Circles: old data, triangles: new data, one for each growth ratio. What to see: "
        "the strategies lie close together; accuracy on two classes hardly tells them apart.",
    )


def sweep_figure(summary: Summary) -> Figure | None:
    """Speed-up over retraining against α."""
    sets = []
    for name in (*IMAGES, *GRAPHS):
        places = [p for p in summary.places if p.set == name]
        if any(sum(bool(summary.runs(p, one)) for p in places) >= 5 for one in SWEPT):
            sets.append(name)
    if not sets:
        return None

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, 2, sharey=False)
        for axis, protocol in zip(axes, ("paper", "parity"), strict=True):
            for number, data in enumerate(sets):
                places = [p for p in summary.places if p.set == data]
                for name, style in SWEPT.items():
                    points = _sweep(summary, places, name, protocol)
                    if len(points) < 2:
                        continue
                    look = {"color": COLOURS[name], "alpha": 1.0 - 0.35 * number}
                    label = f"{strategy_title(name)}, {set_title(data)}"
                    ratios, values, cut = zip(*points, strict=True)
                    axis.plot(ratios, values, style, label=label, **look)
                    for ratio, value, at_most in zip(ratios, values, cut, strict=True):
                        axis.plot([ratio], [value], "v" if at_most else "o", markersize=4, **look)
            axis.axhline(1.0, color=SERIES[0], linestyle=":", label="retraining")
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter("{x:g}×")
            axis.yaxis.set_minor_formatter("")
            axis.set_xlabel("growth ratio α")
            axis.set_title("to the lowest training loss" if protocol == "paper" else "to parity")
            axis.grid(True, which="both")
            axis.legend(fontsize="small")
        axes[0].set_ylabel("speed-up in time")

    return Figure(
        title="The sweep of α: speed-up over retraining",
        svg=svg(draw, name="sweep", title="speed-up over retraining against the growth ratio"),
        caption="Left by the paper's protocol, right to parity. Triangles: a run was cut short, "
        "its speed-up is at most that. A point that is missing on the right never came to parity, "
        "or was there before any update. The paper: 2.2× to 18.3× in time, falling with α.",
    )


def _sweep(
    summary: Summary, places: Sequence[Place], name: str, protocol: str
) -> list[tuple[float, float, bool]]:
    """Growth ratio, speed-up, and whether that is only a bound."""
    points = []
    for place in places:
        speed_up = summary.paper_speed_up if protocol == "paper" else summary.parity_speed_up
        found = speed_up(place, name, "time")
        if found is not None and found.value is not None:
            at_most = protocol == "paper" and summary.cut_short(place, name)
            points.append((place.growth_ratio, found.value, at_most))
    return points


def training_figure(summary: Summary) -> Figure | None:
    """The training loss: NCE-II against NCE-I, learned learning rates against a fixed one."""
    place = _richest(
        summary, ("reddit", "imagenet-2", "proteins"), ("paper-no-m", "paper-no-m-lrl")
    )
    if place is None:
        return None
    shown = {
        "warm-start": "NCE-I, Adam (warm start)",
        "paper-no-m-lrl": "NCE-II, Adam (w/o M+LRL)",
        "paper-no-m": "NCE-II, learned lr (w/o M)",
        "icl": "NCE-I + NCE-II (ICL())",
    }

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        for name, label in shown.items():
            rows = summary.finished(place, name)
            if not rows:
                continue
            losses = rows[0]["curve"]["training_loss"]
            colour = COLOURS[name]
            left.plot(range(1, len(losses) + 1), losses, color=colour, label=label, linewidth=1.2)
            curve = rows[0]["curve"]
            thousands = [passes / 1000 for passes in curve["forward_passes"]]
            right.plot(thousands, curve["all"], color=colour, label=label)
        target = summary.finished(place, RETRAINING)[0]["parity"]["after"]["all"]
        right.axhline(target, color=SERIES[0], linestyle=":", label="retraining's end")
        left.set_xlabel("epoch")
        left.set_title("training loss, as each defines it")
        left.set_xscale("log")
        left.xaxis.set_major_formatter("{x:g}")
        right.set_xlabel("thousand forward passes")
        right.set_title("evaluation loss over X′")
        for axis in (left, right):
            axis.grid(True)
            axis.legend(fontsize="small")

    return Figure(
        title=f"Training: {place.title}",
        svg=svg(draw, name="training", title="training loss and evaluation loss"),
        caption="Left, the losses that the paper draws. They differ in meaning: NCE-II leaves out "
        "what the initial training has minimised, so it is lower from the start. Right, the same "
        "runs by the one loss that all of them are about.",
    )


def parity_figure(summary: Summary) -> Figure | None:
    """Evaluation loss of old and new items against time, where the negatives change."""
    place = _richest(
        summary, ("mnist-class", "mnist-shift", "digits", "proteins"), ("fine-tuning",)
    )
    if place is None:
        return None

    def draw(figure: Any) -> None:
        from matplotlib.ticker import LogLocator

        axes = figure.subplots(1, 2, sharey=True)
        for axis, part in zip(axes, ("old", "new"), strict=True):
            for name in CURVES:
                rows = summary.finished(place, name)
                if rows:
                    curve = rows[0]["curve"]
                    start = 1 if name == RETRAINING else 0
                    seconds = [max(second, 0.05) for second in curve["seconds"][start:]]
                    axis.plot(
                        seconds,
                        curve[part][start:],
                        color=COLOURS[name],
                        label=strategy_title(name),
                    )
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.xaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
            axis.yaxis.set_minor_formatter("{x:g}")
            axis.set_xlabel("seconds of training")
            axis.set_title(f"{part} items")
            axis.grid(True)
        axes[0].set_ylabel("evaluation loss over X′")
        axes[1].legend(fontsize="small")

    return Figure(
        title=f"Loss against time: {place.title}",
        svg=svg(draw, name="parity", title="evaluation loss against time", height=4),
        caption="One seed. What to see: who learns the new items and at what price for the old "
        "ones; a good update brings both down to where retraining ends, further left.",
    )


def _richest(summary: Summary, sets: Sequence[str], needed: Sequence[str]) -> Place | None:
    for name in sets:
        for place in summary.places:
            if place.set == name and all(summary.finished(place, other) for other in needed):
                return place
    return None
