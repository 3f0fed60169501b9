"""The commands and their options. What a command does is in the module that it names."""

import re
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, BadParameter, Option

from incontrast._version import __version__
from incontrast.cli import options as opt
from incontrast.cli.command import Group, command

app = typer.Typer(
    name="incontrast",
    cls=Group,
    help="Keep a self-supervised encoder up to date.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


CREATE, USE, INSPECT = "Create and train", "Use the encoder", "Inspect"
UNDO, TRY = "Undo", "Try it out"


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def incontrast(
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Keep a self-supervised encoder up to date."""


@command(app, "init", opt.network, opt.views, opt.table, panel=CREATE)
def init(
    folder: Annotated[Path, Argument(help="A new or empty folder.")],
    like: Annotated[
        Path, Option(help="Data like those to come; they decide which encoder is used.")
    ],
    memory: Annotated[
        opt.PolicyName,
        Option(help="Which old items to keep: all of them, a uniform sample, or the newest."),
    ] = "all",
    memory_items: Annotated[
        int | None, Option(min=1, help="Largest number of items to keep.")
    ] = None,
    memory_bytes: Annotated[
        int | None, Option(min=1, help="Largest number of bytes to keep.")
    ] = None,
    strategy: Annotated[opt.StrategyName, Option(help="The update strategy.")] = "icl",
    epochs: Annotated[
        int | None,
        Option(min=1, help="Largest number of epochs of an update.", show_default="the strategy's"),
    ] = None,
    fit_epochs: Annotated[
        int, Option(min=1, help="Largest number of epochs of the initial training.")
    ] = 200,
    fit_patience: Annotated[
        int,
        Option(min=1, help="Stop the initial training after so many epochs without a lower loss."),
    ] = 50,
    seed: Annotated[
        int, Option(help="Random seed; the same seed gives bitwise the same weights.")
    ] = 0,
    tolerance: Annotated[
        float,
        Option(min=0.0, help="How much an update may raise the loss of old items, as a share."),
    ] = 0.05,
    keep: Annotated[int, Option(min=2, help="Number of versions to keep.")] = 10,
    threads: Annotated[
        int | None,
        Option(min=1, help="Number of CPU threads.", show_default="1 for small encoders, else all"),
    ] = None,
    changes: opt.Changes = None,
    show_config: Annotated[
        bool, Option("--show-config", help="Print all settings as TOML, and create nothing.")
    ] = False,
) -> None:
    """Create a workspace for data of one kind.

    All other settings have defaults in the workspace's settings.toml: --show-config prints them,
    --set changes them, and incontrast config does both later.
    """
    if memory != "all" and memory_items is None and memory_bytes is None:
        raise BadParameter(f"a {memory} needs a limit: give --memory-items or --memory-bytes")


@command(app, "encoder", opt.training, opt.probing, opt.table, torchrun=True, panel=CREATE)
def fit(data: opt.Data = None, workspace: opt.Folder = Path(), trust: opt.Trust = False) -> None:
    """Train the first encoder, and remember the data."""


@command(app, "encoder", opt.network, opt.views, opt.probing, opt.table, panel=CREATE)
def adopt(
    data: Annotated[
        Path | None,
        Argument(
            help="The data the encoder was trained on, or a sample of them. Leave out to finish an "
            "interrupted adoption."
        ),
    ] = None,
    workspace: opt.Folder = Path(),
    weights: Annotated[
        Path | None, Option(help="A .safetensors file with the encoder's weights.")
    ] = None,
    head: Annotated[
        str | None,
        Option(
            help="The projection head it was trained with: linear, mlp, or your own, as "
            "package.module:function (called with the embedding width).",
            show_default="no head",
        ),
    ] = None,
    head_args: Annotated[
        str | None,
        Option(
            callback=opt.json_object, help="Arguments of your head, as JSON.", show_default=False
        ),
    ] = None,
    head_weights: Annotated[
        Path | None,
        Option(help="A .safetensors file with the head's weights.", show_default=False),
    ] = None,
    mean: opt.Mean = None,
    std: opt.Std = None,
    changes: opt.Changes = None,
    seen_count: Annotated[
        int | None,
        Option(min=1, help="How many items the sample stands for.", show_default="its size"),
    ] = None,
    strict: opt.Strict = False,
    force: opt.Force = False,
    discard: opt.Discard = False,
    trust: opt.Trust = False,
) -> None:
    """Start with an encoder that was trained elsewhere, as version 1, without training.

    A workspace that does not exist is created, as init does it with its defaults. Give the encoder
    by name or by its import path, and its weights, unless your function loads them itself.
    """


@command(app, "encoder", opt.training, opt.probing, opt.table, torchrun=True, panel=CREATE)
def update(
    data: opt.Data = None,
    workspace: opt.Folder = Path(),
    strategy: Annotated[
        opt.StrategyName | None,
        Option(help="Strategy for this update only.", show_default="the workspace's"),
    ] = None,
    epochs: Annotated[
        int | None,
        Option(
            min=1,
            help="Largest number of epochs, for this update only.",
            show_default="the workspace's",
        ),
    ] = None,
    again: Annotated[
        bool, Option("--again", help="Also ingest items that were ingested before.")
    ] = False,
    tolerance: Annotated[
        float | None,
        Option(
            min=0.0,
            help="How much the loss of old items may rise, as a share, for this update only, or "
            "for the one that was refused.",
            show_default="the workspace's",
        ),
    ] = None,
    only_if_drift: Annotated[
        bool,
        Option(
            "--only-if-drift",
            help="Train only if the new data have drifted (see incontrast drift); otherwise only "
            "remember them.",
        ),
    ] = False,
    trust: opt.Trust = False,
) -> None:
    """Ingest new data, train, evaluate, and promote the new version.

    If it was interrupted, the same command resumes, with bitwise the same result. Items that were
    ingested before are skipped and counted. A refused update stays until the next update with data
    includes it, --force promotes it or --discard drops it.
    """


@command(app, "encoder", opt.table, torchrun=True, panel=USE)
def embed(
    data: Annotated[Path, Argument(help="Data of the workspace's kind.")],
    to: Annotated[
        Path,
        Argument(help="File to write: .npy (ids beside it) or .parquet; or a folder, for shards."),
    ],
    workspace: opt.Folder = Path(),
    version: opt.Version = None,
    space: Annotated[
        int | None,
        Option(help="Map the embeddings into the space of this version.", show_default="no map"),
    ] = None,
    normalized: Annotated[bool, Option("--normalize", help="Write unit vectors.")] = False,
    dtype: Annotated[opt.NumberType, Option(help="Number type of the embeddings.")] = "float32",
    append: Annotated[
        bool, Option("--append", help="Append to an existing file of the same version.")
    ] = False,
    overwrite: Annotated[bool, Option("--overwrite", help="Overwrite an existing file.")] = False,
    strict: opt.Strict = False,
    trust: opt.Trust = False,
) -> None:
    """Write embeddings of data to a file; the same command resumes if interrupted."""
    if to.suffix not in (".npy", ".parquet", ""):
        raise BadParameter(
            f"embeddings are written to .npy, to .parquet or to a folder, got {to.name!r}"
        )
    if append and not to.suffix:
        raise BadParameter("a folder holds embeddings of one source: choose another for more")


@command(app, "encoder", panel=USE)
def export(
    file: Annotated[Path, Argument(help="The file to write: .onnx, .pt2 or .safetensors.")],
    workspace: opt.Folder = Path(),
    version: opt.Version = None,
    normalized: Annotated[bool, Option("--normalize", help="Give unit vectors.")] = False,
    trust: opt.Trust = False,
) -> None:
    """Write the encoder for other programs: ONNX, torch.export, or its weights.

    ONNX and torch.export (.pt2) take items as they are, standardise them, and are compared with
    this encoder on 100 items. Weights (.safetensors) are a plain state dict.
    """
    if file.suffix not in (".onnx", ".pt2", ".safetensors"):
        raise BadParameter(
            f"an encoder is exported to .onnx, .pt2 or .safetensors, got {file.name!r}"
        )


@command(app, "encoder", opt.table, panel=USE)
def reembed(
    vectors: Annotated[Path, Argument(help="A .npy or .parquet file that embed wrote.")],
    workspace: opt.Folder = Path(),
    plan: Annotated[
        bool, Option("--plan", help="Only show what to expect; change nothing.")
    ] = False,
    share: Annotated[
        str | None, Option(help="Share of the rows to re-embed, such as 10%.", show_default="100%")
    ] = None,
    seconds: Annotated[float | None, Option(min=0.0, help="Time limit for re-embedding.")] = None,
    queries: Annotated[
        Path | None,
        Option(help="Typical queries, to plan for.", show_default="items of later updates"),
    ] = None,
    trust: opt.Trust = False,
) -> None:
    """Bring stored vectors into the space of the current version.

    Rows that gain most are re-embedded first, all others are mapped. If it was interrupted, the
    same command resumes; run again with a larger share, it continues.
    """
    if share is not None and not re.fullmatch(r"\d+(\.\d+)?%", share):
        raise BadParameter(f"a share is a percentage, such as 10%, got {share!r}")
    if share is not None and float(share.rstrip("%")) > 100:
        raise BadParameter(f"a share is at most 100%, got {share}")


@command(app, "encoder", opt.table, panel=INSPECT)
def drift(
    data: Annotated[Path, Argument(help="New data of the workspace's kind.")],
    workspace: opt.Folder = Path(),
    significance: Annotated[float, Option(help="Accepted rate of false alarms.")] = 0.05,
    fail_on_drift: Annotated[
        bool, Option("--fail-on-drift", help="Exit with code 8 if there is drift.")
    ] = False,
    strict: opt.Strict = False,
    trust: opt.Trust = False,
) -> None:
    """Test whether new data differ from old ones, and say what to do."""
    if not 0.0 < significance < 1.0:
        raise BadParameter(f"significance must be between 0 and 1, got {significance:g}")


@command(app, "workspace", panel=INSPECT)
def status(
    workspace: opt.Folder = Path(),
    check: Annotated[
        bool, Option("--check", help="Read every file and check it for damage.")
    ] = False,
) -> None:
    """Show the current version, the memory, and unfinished work."""


@command(app, "workspace", panel=INSPECT)
def config(
    workspace: opt.Folder = Path(), changes: opt.Changes = None, trust: opt.Trust = False
) -> None:
    """Show or change the settings of a workspace."""


@command(app, "workspace", panel=INSPECT)
def log(
    workspace: opt.Folder = Path(),
    last: Annotated[int | None, Option(min=0, help="Show only the last N events.")] = None,
) -> None:
    """Show the journal: what was done when, with which data and result."""


@command(app, "workspace", panel=UNDO)
def rollback(
    workspace: opt.Folder = Path(),
    to: Annotated[
        int | None, Option(help="Version to go back to.", show_default="the previous one")
    ] = None,
) -> None:
    """Go back to an earlier version, and to the memory it had.

    Without --to, the last update is reverted, once: the same command again changes nothing.
    """


@command(app, "workspace", opt.table, panel=UNDO)
def forget(
    ids: Annotated[
        list[int] | None, Argument(help="Item ids: places in the order of arrival, from 0.")
    ] = None,
    workspace: opt.Folder = Path(),
    like: Annotated[
        Path | None, Option(help="A file or folder: forget all items with the same content.")
    ] = None,
    hashes: Annotated[
        list[str] | None, Option("--hash", help="A content hash; repeat for more.")
    ] = None,
) -> None:
    """Delete items for good, from the memory and from the file on disk."""
    if not (ids or like or hashes):
        raise BadParameter("say which items: their ids, --like DATA, or --hash")
    if any(not re.fullmatch("[0-9a-fA-F]{32}", digest) for digest in hashes or []):
        raise BadParameter("a hash is 32 hexadecimal digits")
    if any(not 0 <= item < 2**63 for item in ids or []):
        raise BadParameter("an id is a place in the order of arrival, from 0")


@command(app, "report", panel=INSPECT)
def report(
    workspace: opt.Folder = Path(),
    version: Annotated[int | None, Option(help="The version.", show_default="the newest")] = None,
    to: Annotated[
        Path | None,
        Option(help="The file.", show_default="reports/version-N.html in the workspace"),
    ] = None,
) -> None:
    """Write the HTML report of a version, and print its summary."""


@command(app, "report", panel=INSPECT)
def history(
    workspace: opt.Folder = Path(),
    to: Annotated[
        Path | None, Option(help="The file.", show_default="reports/history.html in the workspace")
    ] = None,
) -> None:
    """Write an HTML page over all versions: quality, drift, cost, neighbours kept."""


@command(app, "workspace", panel=USE)
def serve(
    workspace: opt.Folder = Path(),
    index: Annotated[
        Path | None,
        Option(
            exists=True,
            file_okay=False,
            help="Folder of an index to search in.",
            show_default="no search",
        ),
    ] = None,
    host: Annotated[
        str, Option(help="Address to listen on; any but localhost needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on.")] = 8000,
    workers: Annotated[
        int, Option(min=1, help="Number of processes, each with its own encoder.")
    ] = 1,
    token: Annotated[
        str | None,
        Option(
            envvar="INCONTRAST_TOKEN",
            help="Token that clients must send; safer in the environment than on the command line.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None, Option(exists=True, dir_okay=False, help="A file with the token.")
    ] = None,
    batch_size: Annotated[
        int, Option(min=1, help="Largest number of items in a forward pass.")
    ] = 64,
    max_items: Annotated[int, Option(min=1, help="Largest number of items in a request.")] = 1024,
    max_bytes: Annotated[int, Option(min=1, help="Largest request body, in bytes.")] = 2**24,
    max_waiting: Annotated[
        int, Option(min=1, help="Largest number of waiting items; more are refused.")
    ] = 8192,
    trust: opt.Trust = False,
) -> None:
    """Serve embeddings over HTTP; new versions are swapped in without downtime."""
    if token and token_file:
        raise BadParameter("give --token or --token-file, not both")
    if max_waiting < max_items:
        raise BadParameter(f"--max-waiting must be at least --max-items, which is {max_items}")
    if not (token or token_file or re.fullmatch(r"localhost|127(\.\d+){3}|::1", host)):
        raise BadParameter(f"{host} can be reached from elsewhere: give --token or --token-file")


@command(app, "compare", workspace=False, panel=TRY)
def demo(
    seed: Annotated[int, Option(help="The same seed gives the same losses.")] = 0,
    out: Annotated[Path, Option(help="HTML page to write, with the loss over time.")] = Path(
        "demo.html"
    ),
) -> None:
    """Train on seven digit classes, then add three new ones with six strategies."""
    _check_page(out)


@command(app, "compare", opt.network, opt.table, workspace=False, panel=TRY)
def compare(
    old: Annotated[Path, Argument(help="What came first: a folder or a file of items.")],
    new: Annotated[Path, Argument(help="What came later, of the same kind.")],
    minutes: Annotated[float, Option(help="Time limit for everything, in minutes.")] = 5.0,
    items: Annotated[
        int, Option(min=8, help="Largest number of items, old and new together.")
    ] = 2000,
    seed: Annotated[int, Option(min=0, help="Random seed for drawing items.")] = 0,
    out: Annotated[Path | None, Option(help="HTML report to write.")] = None,
    workspace: Annotated[
        Path | None, Option("--workspace", "-w", help="Workspace whose table options to use.")
    ] = None,
) -> None:
    """Compare the strategies on your own data within a time limit, and recommend one.

    Images are resized to at most 32 pixels unless a size or an encoder is given, since larger ones
    take many times as long.
    """
    if minutes <= 0:
        raise BadParameter(f"minutes must be positive, got {minutes:g}")
    if out is not None:
        _check_page(out)


def _check_page(out: Path) -> None:
    if out.is_dir() or not out.absolute().parent.is_dir():
        problem = "is a folder" if out.is_dir() else "is in a folder that does not exist"
        raise BadParameter(f"--out {out} {problem}: name a file")
