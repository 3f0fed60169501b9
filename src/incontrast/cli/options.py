"""Options that several commands share, one by one or as a group, and the names that they take."""

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

Folder = Annotated[
    Path, Option("--workspace", "-w", envvar="INCONTRAST_WORKSPACE", help="The workspace's folder.")
]
Data = Annotated[
    Path | None,
    Argument(
        help="A folder of images; vectors as .npy, .npz, .csv or .parquet; graphs as a TU folder "
        "or .jsonl; texts as .txt, .jsonl, .csv or .parquet. Left out, what was interrupted "
        "resumes."
    ),
]
Size = Annotated[
    int | None, Option(min=4, help="Images: pixels.", show_default="typical, 224 at most")
]
Channels = Annotated[
    int | None, Option(help="Images: 1 (grey) or 3 (colour).", show_default="what they have")
]
Version = Annotated[int | None, Option(help="The version.", show_default="the current one")]
Strict = Annotated[
    bool,
    Option("--strict", help="Refuse files and rows that cannot be read; do not skip them."),
]
Force = Annotated[bool, Option("--force", help="Promote the new version even if checks failed.")]
Discard = Annotated[
    bool, Option("--discard", help="Drop what was interrupted or refused before, with its items.")
]

Trust = Annotated[
    bool, Option("--trust", help="Permit the code that somebody else's workspace names; once.")
]


def _encoder(name: str | None) -> str | None:
    names = get_args(EncoderName)
    if name is not None and ":" not in name and name not in names and not is_model(name):
        raise BadParameter(
            f"an encoder is {', '.join(names)}, your own, package.module:function, or a folder "
            f"with a model of transformers; got {name!r}"
        )
    return name


def json_object(text: str | None) -> dict[str, Any] | None:
    try:
        value = None if text is None else json.loads(text)
    except ValueError as error:
        raise BadParameter(f"arguments are a JSON object, got {text!r}: {error}") from error
    if value is not None and not isinstance(value, dict):
        raise BadParameter(f"arguments are a JSON object, as in '{{\"depth\": 3}}', got {text!r}")
    return value


def _numbers(text: str | None) -> tuple[float, ...] | None:
    try:
        return None if text is None else tuple(map(float, text.strip("[]").split(",")))
    except ValueError as error:
        raise BadParameter(f"numbers with commas, as in 0.5,0.4,0.3, got {text!r}") from error


Mean = Annotated[
    str | None,
    Option(
        callback=_numbers,
        help="What is subtracted from pixels in [0, 1], for each channel, or from features.",
        show_default="ImageNet's",
    ),
]
Std = Annotated[
    str | None,
    Option(callback=_numbers, help="What that is divided by.", show_default="ImageNet's"),
]


def network(
    size: Size = None,
    channels: Channels = None,
    encoder: Annotated[
        str | None,
        Option(
            callback=_encoder,
            help="The encoder: small, resnet18 or resnet18-standard for images, ngrams or "
            "transformer for texts, your own, as package.module:function, or a folder with a model "
            "of transformers.",
            show_default="images: small up to 32 pixels, else resnet18; texts: ngrams",
        ),
    ] = None,
    encoder_args: Annotated[
        str | None, Option(callback=json_object, help="Arguments of your encoder, as JSON.")
    ] = None,
) -> None:
    """Options of commands that decide the encoder."""


Flip = Annotated[float, Option(min=0.0, max=1.0, help="Images: how often a view is mirrored.")]
Crop = Annotated[
    float, Option(min=0.0, max=1.0, help="Images: the least share of one that a view shows.")
]

Changes = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="NAME=VALUE",
        help="A setting: strategy.lr, strategy.batch_size, objective.temperature, head, device, "
        "precision, domain.views.flip, budget.seconds, …; may be given again.",
    ),
]


def table(
    columns: Annotated[
        str | None,
        Option(
            callback=lambda names: names and [name.strip() for name in names.split(",")],
            help="Tables and .jsonl: the columns to learn from, with commas.",
            show_default="all others",
        ),
    ] = None,
    id: Annotated[str | None, Option(help="Tables: the column that names each item.")] = None,
    label: Annotated[
        str | None, Option(help="Tables: a column of labels, which is left out.")
    ] = None,
) -> None:
    """Options of commands that read data."""


def training(
    seconds: Annotated[
        float | None,
        Option(
            min=0.0,
            help="Time at most, for reading, training and evaluating; the result depends on the "
            "machine.",
        ),
    ] = None,
    forward_passes: Annotated[int | None, Option(min=1, help="Forward passes at most.")] = None,
    log_to: Annotated[
        str | None, Option(help="Also write to tensorboard:FOLDER, mlflow:URI or wandb:PROJECT.")
    ] = None,
    strict: Strict = False,
    force: Force = False,
    discard: Discard = False,
) -> None:
    """Options of commands that train."""


def probing(
    probe: Annotated[
        Path | None,
        Option(
            help="Labelled items to judge encoders by, before and after: images in a subfolder for "
            "each class, or a table with labels. Remembered for the next updates."
        ),
    ] = None,
    probe_label: Annotated[str, Option(help="The probe's column of labels.")] = "label",
) -> None:
    """Options of commands that judge an encoder."""
