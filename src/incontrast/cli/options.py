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
        "or .jsonl; texts as .txt, .jsonl, .csv or .parquet. Leave out to resume what was "
        "interrupted."
    ),
]
Size = Annotated[
    int | None,
    Option(
        min=4, help="Images: width and height in pixels.", show_default="typical size, at most 224"
    ),
]
Channels = Annotated[
    int | None, Option(help="Images: 1 (grey) or 3 (colour).", show_default="as in the data")
]
Version = Annotated[
    int | None, Option(help="Version of the encoder.", show_default="the current one")
]
Strict = Annotated[
    bool,
    Option(
        "--strict", help="Fail on files and rows that cannot be read, instead of skipping them."
    ),
]
Force = Annotated[bool, Option("--force", help="Promote the new version even if a check failed.")]
Discard = Annotated[
    bool, Option("--discard", help="Drop an interrupted or refused update, with its items.")
]

Trust = Annotated[
    bool, Option("--trust", help="Allow the code that this workspace names to run; needed once.")
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
        help="Mean to subtract: of pixels in [0, 1], per channel, or of features.",
        show_default="ImageNet's",
    ),
]
Std = Annotated[
    str | None,
    Option(callback=_numbers, help="Standard deviation to divide by.", show_default="ImageNet's"),
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
    """Encoder."""


def views(
    flip: Annotated[
        float, Option(min=0.0, max=1.0, help="Images: probability that a view is flipped.")
    ] = 0.5,
    crop: Annotated[
        float,
        Option(min=0.0, max=1.0, help="Images: smallest share of an image that a view shows."),
    ] = 0.2,
) -> None:
    """Views."""


Changes = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="NAME=VALUE",
        help="Change a setting: strategy.lr, strategy.batch_size, objective.temperature, head, "
        "device, precision, domain.views.flip, budget.seconds, …; repeat for more.",
    ),
]


def table(
    columns: Annotated[
        str | None,
        Option(
            callback=lambda names: names and [name.strip() for name in names.split(",")],
            help="Columns to learn from, separated by commas.",
            show_default="all but id and label",
        ),
    ] = None,
    id: Annotated[str | None, Option(help="Column with the ids of items.")] = None,
    label: Annotated[
        str | None, Option(help="Column with labels, which training never sees.")
    ] = None,
) -> None:
    """Tables and .jsonl files."""


def training(
    seconds: Annotated[
        float | None,
        Option(
            min=0.0,
            help="Time limit for reading, training and evaluating. The result then depends on "
            "the machine.",
        ),
    ] = None,
    forward_passes: Annotated[
        int | None, Option(min=1, help="Largest number of forward passes.")
    ] = None,
    log_to: Annotated[
        str | None, Option(help="Log to tensorboard:FOLDER, mlflow:URI or wandb:PROJECT.")
    ] = None,
    strict: Strict = False,
    force: Force = False,
    discard: Discard = False,
) -> None:
    """Training."""


def probing(
    probe: Annotated[
        Path | None,
        Option(
            help="Labelled items by which the encoder is judged before and after: a folder with a "
            "subfolder of images per class, or a table. Remembered for later updates."
        ),
    ] = None,
    probe_label: Annotated[str, Option(help="Column with the labels.")] = "label",
) -> None:
    """Probe set."""
