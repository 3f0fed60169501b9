"""Options that several commands share, one by one or as a group, and the names they take."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from typer import Argument, BadParameter, Option

from incontrast.import_path import is_model

StrategyName = Literal[
    "icl", "warm-start", "fine-tune", "replay", "distill", "retrain", "no-update"
]
NumberType = Literal["float32", "float16"]
PolicyName = Literal["all", "reservoir", "queue"]
EncoderName = Literal["small", "resnet18", "resnet18-standard", "transformer", "ngrams"]

Count = Annotated[int, Option(min=1)]
OptionalCount = Annotated[int | None, Option(min=1)]
Amount = Annotated[float | None, Option(min=0.0)]
Share = Annotated[float, Option(min=0.0, max=1.0)]

Data = Annotated[
    Path | None,
    Argument(
        help="A folder of images; vectors as .npy, .npz, .csv or .parquet; graphs as a TU folder "
        "or .jsonl; texts as .txt, .jsonl, .csv or .parquet. Leave out to resume what was "
        "interrupted."
    ),
]
Version = Annotated[
    int | None, Option(help="Version of the encoder.", show_default="the current one")
]
Strict = Annotated[
    bool, Option(help="Fail on files and rows that cannot be read, instead of skipping them.")
]
Force = Annotated[bool, Option(help="Promote the new version even if a check failed.")]
Discard = Annotated[bool, Option(help="Drop an interrupted or refused update, with its items.")]
Normalized = Annotated[bool, Option("--normalize", help="Write unit vectors.")]
Changes = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="NAME=VALUE",
        help="Change a setting: strategy.lr, strategy.batch_size, objective.temperature, head, "
        "device, precision, domain.views.flip, budget.seconds, …; repeat for more.",
    ),
]


def _encoder(name: str | None) -> str | None:
    names = get_args(EncoderName)
    if name is not None and ":" not in name and name not in names and not is_model(name):
        raise BadParameter(
            f"an encoder is {', '.join(names)}, your own, package.module:function, or a folder "
            f"with a model of transformers; got {name!r}"
        )
    return name


def _json_object(text: str | None) -> dict[str, Any] | None:
    try:
        value = None if text is None else json.loads(text)
    except ValueError:
        value = text
    if value is not None and not isinstance(value, dict):
        raise BadParameter(f"arguments are a JSON object, as in '{{\"depth\": 3}}', got {text!r}")
    return value


def _numbers(text: str | None) -> tuple[float, ...] | None:
    try:
        return None if text is None else tuple(map(float, text.strip("[]").split(",")))
    except ValueError as error:
        raise BadParameter(f"numbers with commas, as in 0.5,0.4,0.3, got {text!r}") from error


Json = Annotated[str | None, Option(callback=_json_object)]
Numbers = Annotated[str | None, Option(callback=_numbers)]
Names = Annotated[
    str | None, Option(callback=lambda text: text and [name.strip() for name in text.split(",")])
]


def network(
    *,
    size: Annotated[int | None, Option(min=4)] = None,
    channels: int | None = None,
    encoder: Annotated[str | None, Option(callback=_encoder)] = None,
    encoder_args: Json = None,
) -> None:
    """Encoder.

    Args:
        size: Images: width and height in pixels. Default: typical size, at most 224.
        channels: Images: 1 (grey) or 3 (colour). Default: as in the data.
        encoder: The encoder: small, resnet18 or resnet18-standard for images, ngrams or transformer
            for texts, your own, as package.module:function, or a folder with a model of
            transformers. Default: images: small up to 32 pixels, else resnet18; texts: ngrams.
        encoder_args: Arguments of your encoder, as JSON.
    """


def views(*, flip: Share = 0.5, crop: Share = 0.2) -> None:
    """Views.

    Args:
        flip: Images: probability that a view is flipped.
        crop: Images: smallest share of an image that a view shows.
    """


def table(*, columns: Names = None, id: str | None = None, label: str | None = None) -> None:
    """Tables and .jsonl files.

    Args:
        columns: Columns to learn from, separated by commas. Default: all but id and label.
        id: Column with the ids of items.
        label: Column with labels, which training never sees.
    """


def training(
    *,
    seconds: Amount = None,
    forward_passes: OptionalCount = None,
    log_to: str | None = None,
    strict: Strict = False,
    force: Force = False,
    discard: Discard = False,
) -> None:
    """Training.

    Args:
        seconds: Time limit for reading, training and evaluating. The result then depends on the
            machine.
        forward_passes: Largest number of forward passes.
        log_to: Log to tensorboard:FOLDER, mlflow:URI or wandb:PROJECT.
    """


def probing(*, probe: Path | None = None, probe_label: str = "label") -> None:
    """Probe set.

    Args:
        probe: Labelled items by which the encoder is judged before and after: a folder with a
            subfolder of images per class, or a table. Remembered for later updates.
        probe_label: Column with the labels.
    """


def place(
    *,
    workspace: Annotated[Path, Option("--workspace", "-w", envvar="INCONTRAST_WORKSPACE")] = Path(),
) -> None:
    """Workspace.

    Args:
        workspace: The workspace's folder.
    """


def code(*, trust: bool = False) -> None:
    """Workspace.

    Args:
        trust: Allow the code that this workspace names to run; needed once.
    """
