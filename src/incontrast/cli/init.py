"""``incontrast init``: a new workspace for a kind of data."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from incontrast.cli.options import AsJson, Config
from incontrast.cli.strategy_names import StrategyName

__all__ = ["init"]


class Keep(StrEnum):
    """Which old items are kept."""

    ALL = "all"
    RESERVOIR = "reservoir"
    QUEUE = "queue"


class EncoderName(StrEnum):
    """Encoders of images."""

    SMALL = "small"
    RESNET18 = "resnet18"
    RESNET18_STANDARD = "resnet18-standard"


def init(
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.")],
    like: Annotated[
        Path,
        typer.Option(help="Data of the kind to come: they say which encoder fits."),
    ],
    size: Annotated[
        int | None,
        typer.Option(
            min=4,
            help="Images: side in pixels.",
            show_default="a typical image's, 224 at most",
        ),
    ] = None,
    channels: Annotated[
        int | None,
        typer.Option(help="Images: 1 (grey) or 3 (colour).", show_default="what they have"),
    ] = None,
    encoder: Annotated[
        EncoderName | None,
        typer.Option(
            help="Images: the encoder.",
            show_default="small up to 32 pixels, else resnet18",
        ),
    ] = None,
    flip: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Images: how often a view is mirrored.")
    ] = 0.5,
    crop: Annotated[
        float,
        typer.Option(
            min=0.0, max=1.0, help="Images: the smallest share of an image that a view shows."
        ),
    ] = 0.2,
    memory: Annotated[
        Keep, typer.Option(help="Which old items to keep: all, a sample, or the newest.")
    ] = Keep.ALL,
    memory_items: Annotated[
        int | None, typer.Option(min=1, help="Items to keep at most (reservoir, queue).")
    ] = None,
    memory_bytes: Annotated[
        int | None, typer.Option(min=1, help="Bytes to keep at most (reservoir, queue).")
    ] = None,
    strategy: Annotated[
        StrategyName, typer.Option(help="How updates are done.")
    ] = StrategyName.ICL,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Epochs of an update at most.",
            show_default="the strategy's; 40 for icl",
        ),
    ] = None,
    fit_epochs: Annotated[int, typer.Option(min=1, help="Epochs of the first fit at most.")] = 200,
    fit_patience: Annotated[
        int, typer.Option(min=1, help="Epochs without a lower loss that end the fit.")
    ] = 50,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bits.")] = 0,
    tolerance: Annotated[
        float,
        typer.Option(
            min=0.0, help="How much the loss of old items may rise, as a share, in an update."
        ),
    ] = 0.05,
    keep: Annotated[int, typer.Option(min=2, help="Versions to keep.")] = 10,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Threads to compute with.",
            show_default="1 for small encoders, else all cores",
        ),
    ] = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Make a workspace for data of one kind."""
    from incontrast.cli.failing import failing
    from incontrast.cli.printing import emit, out

    with failing(as_json):
        from dataclasses import replace

        from incontrast.cli.strategy_names import strategy_of
        from incontrast.data import read_source
        from incontrast.domains.images.domain import Images
        from incontrast.domains.images.views import ImageViews
        from incontrast.learner import Learner
        from incontrast.memory import KeepAll, Policy, Queue, Reservoir
        from incontrast.strategies import Retrain
        from incontrast.workspace import Workspace

        source = read_source(like, check=False)
        name: Any = None if encoder is None else encoder.value
        domain = source.domain(size=size, channels=channels, encoder=name)
        if isinstance(domain, Images):
            views = replace(ImageViews(), flip=flip, scale=(crop, 1.0))
            domain = Images(domain.size, domain.channels, encoder=domain.network, views=views)
        kinds: dict[Keep, Callable[..., Policy]] = {
            Keep.ALL: KeepAll,
            Keep.RESERVOIR: Reservoir,
            Keep.QUEUE: Queue,
        }
        if memory is not Keep.ALL and memory_items is None and memory_bytes is None:
            raise typer.BadParameter(
                f"a {memory} needs a limit: give --memory-items or --memory-bytes"
            )
        learner = Learner(
            domain,
            strategy=strategy_of(strategy, epochs),
            fit_strategy=Retrain(max_epochs=fit_epochs, patience=fit_patience),
            memory=kinds[memory](items=memory_items, bytes=memory_bytes),
            seed=seed,
        )
        if threads is None and not (
            isinstance(domain, Images) and str(domain.network).startswith("resnet18")
        ):
            threads = 1  # such encoders are too small to share
        workspace = Workspace.create(
            folder, learner, tolerance=tolerance, keep=keep, threads=threads
        )
        if as_json:
            emit(
                {
                    "folder": str(workspace.folder),
                    "id": workspace.id,
                    "kind": source.kind,
                    "domain": repr(domain),
                }
            )
        else:
            about = repr(domain)
            if isinstance(domain, Images):
                shape = f"{domain.size}×{domain.size} px, {domain.channels} channels"
                about = f"{shape.removesuffix('s') if domain.channels == 1 else shape}, "
                about += f"encoder {domain.network}"
            out().print(
                f"{workspace.folder} is a workspace for {source.kind}: {about}", markup=False
            )
