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


@command(app, "init", opt.network, opt.table, timed=True)
def init(
    folder: Annotated[Path, Argument(help="A new or empty folder.")],
    like: Annotated[Path, Option(help="Data of the kind to come: they decide the encoder.")],
    flip: opt.Flip = 0.5,
    crop: opt.Crop = 0.2,
    memory: Annotated[
        opt.PolicyName, Option(help="Which old items to keep: all, a sample, or the newest.")
    ] = "all",
    memory_items: Annotated[int | None, Option(min=1, help="Items to keep at most.")] = None,
    memory_bytes: Annotated[int | None, Option(min=1, help="Bytes to keep at most.")] = None,
    strategy: Annotated[opt.StrategyName, Option(help="How updates are done.")] = "icl",
    epochs: Annotated[
        int | None, Option(min=1, help="Epochs of an update.", show_default="the strategy's")
    ] = None,
    fit_epochs: Annotated[int, Option(min=1, help="Epochs of the initial training.")] = 200,
    fit_patience: Annotated[
        int, Option(min=1, help="Epochs without a lower loss that end the initial training.")
    ] = 50,
    seed: Annotated[int, Option(help="A seed makes training bitwise reproducible.")] = 0,
    tolerance: Annotated[
        float, Option(min=0.0, help="The share by which an update may raise the loss of old items.")
    ] = 0.05,
    keep: Annotated[int, Option(min=2, help="Versions to keep.")] = 10,
    threads: Annotated[
        int | None, Option(min=1, help="Threads.", show_default="1 for small encoders, else all")
    ] = None,
    changes: opt.Changes = None,
    show_config: Annotated[
        bool, Option("--show-config", help="Print all settings as TOML, and create nothing.")
    ] = False,
) -> None:
    """Create a workspace for data of one kind.

    Everything else has a default in settings.toml of the workspace: --show-config prints it, --set
    changes it, and incontrast config does both later.
    """
    if memory != "all" and memory_items is None and memory_bytes is None:
        raise BadParameter(f"a {memory} needs a limit: give --memory-items or --memory-bytes")


@command(app, "encoder", opt.training, opt.probing, opt.table, torchrun=True)
def fit(data: opt.Data = None, workspace: opt.Folder = Path(), trust: opt.Trust = False) -> None:
    """Train a first encoder on data, and remember them."""


@command(app, "encoder", opt.network, opt.probing, opt.table)
def adopt(
    data: Annotated[
        Path | None,
        Argument(help="What the encoder was trained on, or a sample. Left out, finishes."),
    ] = None,
    workspace: opt.Folder = Path(),
    weights: Annotated[
        Path | None, Option(help="A .safetensors file with the encoder's weights.")
    ] = None,
    head: Annotated[
        str | None,
        Option(
            help="What its loss saw of embeddings: linear, mlp, or your own, as "
            "package.module:function of their width.",
            show_default="embeddings themselves",
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
    flip: opt.Flip = 0.5,
    crop: opt.Crop = 0.2,
    changes: opt.Changes = None,
    seen_count: Annotated[
        int | None,
        Option(min=1, help="How many items a sample stands for.", show_default="as there are"),
    ] = None,
    strict: opt.Strict = False,
    force: opt.Force = False,
    discard: opt.Discard = False,
    trust: opt.Trust = False,
) -> None:
    """Take an encoder that was trained elsewhere as version 1; nothing is trained.

    A workspace that does not exist is created, as init does it with its defaults. Give the encoder
    by name or by its import path, and its weights, unless your function loads them itself.
    """


@command(app, "encoder", opt.training, opt.probing, opt.table, torchrun=True)
def update(
    data: opt.Data = None,
    workspace: opt.Folder = Path(),
    strategy: Annotated[
        opt.StrategyName | None, Option(help="For this once.", show_default="the workspace's")
    ] = None,
    epochs: Annotated[
        int | None,
        Option(min=1, help="Epochs at most, for this once.", show_default="the workspace's"),
    ] = None,
    again: Annotated[
        bool, Option("--again", help="Ingest items once more that were ingested before.")
    ] = False,
    tolerance: Annotated[
        float | None,
        Option(
            min=0.0,
            help="The share by which the loss of old items may rise, for this once; also for what "
            "was refused.",
            show_default="the workspace's",
        ),
    ] = None,
    only_if_drift: Annotated[
        bool,
        Option(
            "--only-if-drift",
            help="Train only if new data differ from old ones; else remember them, as "
            "incontrast drift would advise.",
        ),
    ] = False,
    trust: opt.Trust = False,
) -> None:
    """Ingest new data, train, evaluate, and promote the new version.

    Interrupted at any moment, the same command resumes; the result is bitwise the same. Items that
    were ingested before are left out and counted. What was refused stays: the next update with data
    takes it along, --force promotes it, --discard drops it.
    """


@command(app, "encoder", opt.table, torchrun=True)
def embed(
    data: Annotated[Path, Argument(help="Data of the workspace's kind.")],
    to: Annotated[
        Path,
        Argument(help="The file to write: .npy (with ids) or .parquet; or a folder, for shards."),
    ],
    workspace: opt.Folder = Path(),
    version: opt.Version = None,
    space: Annotated[
        int | None,
        Option(help="Map them into the space of this version.", show_default="their own"),
    ] = None,
    normalized: Annotated[bool, Option("--normalize", help="Write unit vectors.")] = False,
    dtype: Annotated[opt.NumberType, Option(help="The type of the numbers.")] = "float32",
    append: Annotated[bool, Option("--append", help="Add to a file of the same version.")] = False,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace whatever is there.")] = False,
    strict: opt.Strict = False,
    trust: opt.Trust = False,
) -> None:
    """Write embeddings of data to a file; interrupted, the same command resumes."""
    if to.suffix not in (".npy", ".parquet", ""):
        raise BadParameter(
            f"embeddings are written to .npy, to .parquet or to a folder, got {to.name!r}"
        )
    if append and not to.suffix:
        raise BadParameter("a folder holds embeddings of one source: choose another for more")


@command(app, "encoder")
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


@command(app, "encoder", opt.table)
def reembed(
    vectors: Annotated[Path, Argument(help="A .npy or .parquet file that embed wrote.")],
    workspace: opt.Folder = Path(),
    plan: Annotated[
        bool, Option("--plan", help="Only say what to expect; the file stays as it is.")
    ] = False,
    share: Annotated[
        str | None, Option(help="Rows to re-embed, such as 10%.", show_default="all")
    ] = None,
    seconds: Annotated[float | None, Option(min=0.0, help="Time to re-embed for.")] = None,
    queries: Annotated[
        Path | None,
        Option(
            help="Data like those that will be searched for.", show_default="what was learned since"
        ),
    ] = None,
    trust: opt.Trust = False,
) -> None:
    """Bring stored vectors into the space of the current version, the most valuable first.

    Rows that are not re-embedded are mapped. Interrupted, the same command resumes; run again with
    a larger share, it continues.
    """
    if share is not None and not re.fullmatch(r"\d+(\.\d+)?%", share):
        raise BadParameter(f"a share is a percentage, such as 10%, got {share!r}")
    if share is not None and float(share.rstrip("%")) > 100:
        raise BadParameter(f"a share is at most 100%, got {share}")


@command(app, "encoder", opt.table)
def drift(
    data: Annotated[Path, Argument(help="New data of the workspace's kind.")],
    workspace: opt.Folder = Path(),
    significance: Annotated[float, Option(help="The share of false alarms to accept.")] = 0.05,
    fail_on_drift: Annotated[
        bool, Option("--fail-on-drift", help="End with exit code 8 if there is drift.")
    ] = False,
    strict: opt.Strict = False,
    trust: opt.Trust = False,
) -> None:
    """Compare new data with old ones as the encoder sees them, and say what to do."""
    if not 0.0 < significance < 1.0:
        raise BadParameter(f"significance must be between 0 and 1, got {significance:g}")


@command(app, "workspace")
def status(
    workspace: opt.Folder = Path(),
    check: Annotated[bool, Option("--check", help="Read every file and look for damage.")] = False,
) -> None:
    """Show the current version, the memory, and what is unfinished or out of date."""


@command(app, "workspace")
def config(
    workspace: opt.Folder = Path(), changes: opt.Changes = None, trust: opt.Trust = False
) -> None:
    """Show the settings of a workspace, or change some where that is safe."""


@command(app, "workspace")
def log(
    workspace: opt.Folder = Path(),
    last: Annotated[int | None, Option(min=0, help="Only so many events.")] = None,
) -> None:
    """Show the journal: what was done, with which data, how long, with what result."""


@command(app, "workspace")
def rollback(
    workspace: opt.Folder = Path(),
    to: Annotated[int | None, Option(help="The version.", show_default="the one before")] = None,
) -> None:
    """Make an earlier version the current one, with the memory it had.

    Without --to, the last update is reverted, once: the same command again changes nothing.
    """


@command(app, "workspace", opt.table)
def forget(
    ids: Annotated[
        list[int] | None, Argument(help="Items, by their places in the order of arrival, from 0.")
    ] = None,
    workspace: opt.Folder = Path(),
    like: Annotated[
        Path | None, Option(help="A file or a folder: items with the same content are forgotten.")
    ] = None,
    hashes: Annotated[
        list[str] | None, Option("--hash", help="A content hash; may be given again.")
    ] = None,
) -> None:
    """Delete items for good: from memory, and their bytes from the file."""
    if not (ids or like or hashes):
        raise BadParameter("say which items: their ids, --like DATA, or --hash")
    if any(not re.fullmatch("[0-9a-fA-F]{32}", digest) for digest in hashes or []):
        raise BadParameter("a hash is 32 hexadecimal digits")
    if any(not 0 <= item < 2**63 for item in ids or []):
        raise BadParameter("an id is a place in the order of arrival, from 0")


@command(app, "report")
def report(
    workspace: opt.Folder = Path(),
    version: Annotated[int | None, Option(help="The version.", show_default="the newest")] = None,
    to: Annotated[
        Path | None,
        Option(help="The file.", show_default="reports/version-N.html in the workspace"),
    ] = None,
) -> None:
    """Write the HTML page of a version, and sum it up."""


@command(app, "report")
def history(
    workspace: opt.Folder = Path(),
    to: Annotated[
        Path | None, Option(help="The file.", show_default="reports/history.html in the workspace")
    ] = None,
) -> None:
    """Write an HTML page over all versions: quality, drift, cost, neighbours kept."""


@command(app, "workspace")
def serve(
    workspace: opt.Folder = Path(),
    index: Annotated[
        Path | None,
        Option(
            exists=True, file_okay=False, help="An index to search in.", show_default="no search"
        ),
    ] = None,
    host: Annotated[
        str, Option(help="The address to listen on; others than this machine's need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="The port to listen on.")] = 8000,
    workers: Annotated[int, Option(min=1, help="Processes, each with its own encoder.")] = 1,
    token: Annotated[
        str | None,
        Option(
            envvar="INCONTRAST_TOKEN",
            help="What clients must give; better in the environment, where others do not see it.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None, Option(exists=True, dir_okay=False, help="A file with the token.")
    ] = None,
    batch_size: Annotated[int, Option(min=1, help="Items of a forward pass at most.")] = 64,
    max_items: Annotated[int, Option(min=1, help="Items of a request at most.")] = 1024,
    max_bytes: Annotated[int, Option(min=1, help="Bytes of a request's body at most.")] = 2**24,
    max_waiting: Annotated[
        int, Option(min=1, help="Items that may wait for the encoder; more are refused.")
    ] = 8192,
    trust: opt.Trust = False,
) -> None:
    """Serve embeddings over HTTP; a promoted version is swapped in without a gap."""
    if token and token_file:
        raise BadParameter("give --token or --token-file, not both")
    if max_waiting < max_items:
        raise BadParameter(f"--max-waiting must be at least --max-items, which is {max_items}")
    if not (token or token_file or re.fullmatch(r"localhost|127(\.\d+){3}|::1", host)):
        raise BadParameter(f"{host} can be reached from elsewhere: give --token or --token-file")


@command(app, "compare", workspace=False)
def demo(
    seed: Annotated[int, Option(help="The same seed gives the same losses.")] = 0,
    out: Annotated[Path, Option(help="An HTML page to write, with the loss against time.")] = Path(
        "demo.html"
    ),
) -> None:
    """Fit an encoder on seven kinds of digits, then update it with three new ones, six ways."""
    _check_page(out)


@command(app, "compare", opt.network, opt.table, workspace=False, timed=True)
def compare(
    old: Annotated[Path, Argument(help="What came first: a folder or a file of items.")],
    new: Annotated[Path, Argument(help="What came later, of the same kind.")],
    minutes: Annotated[float, Option(help="Minutes that it takes, altogether.")] = 5.0,
    items: Annotated[int, Option(min=8, help="Items at most, old and new together.")] = 2000,
    seed: Annotated[int, Option(min=0, help="The same seed draws the same items.")] = 0,
    out: Annotated[Path | None, Option(help="An HTML file to write as well.")] = None,
    workspace: Annotated[
        Path | None, Option("--workspace", "-w", help="Read tables as this one does.")
    ] = None,
) -> None:
    """Try the strategies on your own data, within a time, and recommend one.

    Images are made 32 pixels small at most, unless a size or an encoder is given: larger ones take
    many times as long.
    """
    if minutes <= 0:
        raise BadParameter(f"minutes must be positive, got {minutes:g}")
    if out is not None:
        _check_page(out)


def _check_page(out: Path) -> None:
    if out.is_dir() or not out.absolute().parent.is_dir():
        problem = "is a folder" if out.is_dir() else "is in a folder that does not exist"
        raise BadParameter(f"--out {out} {problem}: name a file")
