"""The commands and their options. What a command does is in the module that it names."""

import re
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, BadParameter, Option

from incontrast._version import __version__
from incontrast.cli import options as opt
from incontrast.cli.command import app, automation, command

__all__ = ["app"]

CREATE, USE, INSPECT = "Create and train", "Use the encoder", "Inspect"
UNDO, TRY = "Undo", "Try it out"


def _version(show: bool) -> None:
    if show:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def incontrast(
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Keep a self-supervised encoder up to date."""


@command("init", opt.network, opt.views, opt.table, common=(automation,), panel=CREATE)
def init(
    folder: Path,
    *,
    like: Path,
    memory: opt.PolicyName = "all",
    memory_items: opt.OptionalCount = None,
    memory_bytes: opt.OptionalCount = None,
    strategy: opt.StrategyName = "icl",
    epochs: opt.OptionalCount = None,
    fit_epochs: opt.Count = 200,
    fit_patience: opt.Count = 50,
    seed: int = 0,
    tolerance: Annotated[float, Option(min=0.0)] = 0.05,
    keep: Annotated[int, Option(min=2)] = 10,
    threads: opt.OptionalCount = None,
    changes: opt.Changes = None,
    show_config: bool = False,
) -> None:
    """Create a workspace for data of one kind.

    All other settings have defaults in the workspace's settings.toml: --show-config prints them,
    --set changes them, and incontrast config does both later.

    Args:
        folder: A new or empty folder.
        like: Data like those to come; they decide which encoder is used.
        memory: Which old items to keep: all of them, a uniform sample, or the newest.
        memory_items: Largest number of items to keep.
        memory_bytes: Largest number of bytes to keep.
        strategy: The update strategy.
        epochs: Largest number of epochs of an update. Default: the strategy's.
        fit_epochs: Largest number of epochs of the initial training.
        fit_patience: Stop the initial training after so many epochs without a lower loss.
        seed: Random seed; the same seed gives bitwise the same weights.
        tolerance: How much an update may raise the loss of old items, as a share.
        keep: Number of versions to keep.
        threads: Number of CPU threads. Default: 1 for small encoders, else all.
        show_config: Print all settings as TOML, and create nothing.
    """
    if memory != "all" and memory_items is None and memory_bytes is None:
        raise BadParameter(f"a {memory} needs a limit: give --memory-items or --memory-bytes")


@command("encoder", opt.training, opt.probing, opt.table, opt.code, torchrun=True, panel=CREATE)
def fit(data: opt.Data = None) -> None:
    """Train the first encoder, and remember the data."""


@command("adopt", opt.network, opt.views, opt.probing, opt.table, opt.code, panel=CREATE)
def adopt(
    data: Path | None = None,
    *,
    weights: Path | None = None,
    head: str | None = None,
    head_args: opt.Json = None,
    head_weights: Path | None = None,
    mean: opt.Numbers = None,
    std: opt.Numbers = None,
    epochs: opt.OptionalCount = None,
    changes: opt.Changes = None,
    seen_count: opt.OptionalCount = None,
    strict: opt.Strict = False,
    force: opt.Force = False,
    discard: opt.Discard = False,
) -> None:
    """Adopt an encoder that was trained elsewhere as version 1, without training.

    Creates the workspace, with the defaults of init, if there is none. Give the encoder by name or
    import path, and its weights, unless your function loads them itself.

    Args:
        data: The data the encoder was trained on, or a sample of them. Leave out to finish an
            interrupted adoption.
        weights: A .safetensors file with the encoder's weights.
        head: The projection head it was trained with: linear, mlp, or your own, as
            package.module:function (called with the embedding width). Default: no head.
        head_args: Arguments of your head, as JSON.
        head_weights: A .safetensors file with the head's weights.
        mean: Mean to subtract: of pixels in [0, 1], per channel, or of features. Default:
            ImageNet's.
        std: Standard deviation to divide by. Default: ImageNet's.
        epochs: Largest number of epochs of an update. Default: the strategy's.
        seen_count: How many items the sample stands for. Default: its size.
    """


@command("encoder", opt.training, opt.probing, opt.table, opt.code, torchrun=True, panel=CREATE)
def update(
    data: opt.Data = None,
    *,
    strategy: opt.StrategyName | None = None,
    epochs: opt.OptionalCount = None,
    again: bool = False,
    tolerance: opt.Amount = None,
    only_if_drift: bool = False,
) -> None:
    """Ingest new data, train, evaluate, and promote the new version.

    If it was interrupted, the same command resumes, with bitwise the same result. Items that were
    ingested before are skipped and counted. A refused update stays until the next update with data
    includes it, --force promotes it or --discard drops it.

    Args:
        strategy: Strategy for this update only. Default: the workspace's.
        epochs: Largest number of epochs, for this update only. Default: the workspace's.
        again: Also ingest items that were ingested before.
        tolerance: How much the loss of old items may rise, as a share, for this update only, or for
            the one that was refused. Default: the workspace's.
        only_if_drift: Train only if the new data have drifted (see incontrast drift); otherwise
            only remember them.
    """


@command("encoder", opt.table, opt.code, torchrun=True, panel=USE)
def embed(
    data: Path,
    to: Path,
    *,
    version: opt.Version = None,
    space: int | None = None,
    normalized: opt.Normalized = False,
    dtype: opt.NumberType = "float32",
    append: bool = False,
    overwrite: bool = False,
    strict: opt.Strict = False,
) -> None:
    """Write embeddings of data to a file; the same command resumes if interrupted.

    Args:
        data: Data of the workspace's kind.
        to: File to write: .npy (ids beside it) or .parquet; or a folder, for shards.
        space: Map the embeddings into the space of this version. Default: no map.
        dtype: Number type of the embeddings.
        append: Append to an existing file of the same version.
        overwrite: Overwrite an existing file.
    """
    if to.suffix not in (".npy", ".parquet", ""):
        raise BadParameter(f"embeddings are written to .npy, .parquet or a folder, got {to.name!r}")
    if append and not to.suffix:
        raise BadParameter("a folder holds embeddings of one source: choose another for more")


@command("encoder", opt.code, panel=USE)
def export(file: Path, *, version: opt.Version = None, normalized: opt.Normalized = False) -> None:
    """Write the encoder for other programs: ONNX, torch.export, or its weights.

    ONNX and torch.export (.pt2) take items as they are, standardise them, and are compared with
    this encoder on 100 items. Weights (.safetensors) are a plain state dict.

    Args:
        file: The file to write: .onnx, .pt2 or .safetensors.
    """
    if file.suffix not in (".onnx", ".pt2", ".safetensors"):
        raise BadParameter(f"the file must be .onnx, .pt2 or .safetensors, got {file.name!r}")


@command("encoder", opt.table, opt.code, panel=USE)
def reembed(
    vectors: Path,
    *,
    plan: bool = False,
    share: str | None = None,
    seconds: opt.Amount = None,
    queries: Path | None = None,
) -> None:
    """Bring stored vectors into the space of the current version.

    Rows that gain most are re-embedded first, all others are mapped. If it was interrupted, the
    same command resumes; run again with a larger share, it continues.

    Args:
        vectors: A .npy or .parquet file that embed wrote.
        plan: Only show what to expect; change nothing.
        share: Share of the rows to re-embed, such as 10%. Default: 100%.
        seconds: Time limit for re-embedding.
        queries: Typical queries, to plan for. Default: items of later updates.
    """
    if share is not None and not re.fullmatch(r"(\d\d?(\.\d+)?|100)%", share):
        raise BadParameter(f"a share is a percentage up to 100%, such as 10%, got {share!r}")


@command("encoder", opt.table, opt.code, panel=INSPECT)
def drift(
    data: Path,
    *,
    significance: opt.Share = 0.05,
    fail_on_drift: bool = False,
    strict: opt.Strict = False,
) -> None:
    """Test whether new data differ from old ones, and say what to do.

    Args:
        data: New data of the workspace's kind.
        significance: Accepted rate of false alarms.
        fail_on_drift: Exit with code 8 if there is drift.
    """


@command("workspace", panel=INSPECT)
def status(*, check: bool = False) -> None:
    """Show the current version, the memory, and unfinished work.

    Args:
        check: Read every file and check it for damage.
    """


@command("workspace", opt.code, panel=INSPECT)
def config(*, changes: opt.Changes = None) -> None:
    """Show or change the settings of a workspace."""


@command("workspace", panel=INSPECT)
def log(*, last: Annotated[int | None, Option(min=0)] = None) -> None:
    """Show the journal: what was done when, with which data and result.

    Args:
        last: Show only the last N events.
    """


@command("workspace", panel=UNDO)
def rollback(*, to: int | None = None) -> None:
    """Go back to an earlier version, and to the memory it had.

    Without --to, the last update is reverted, once: the same command again changes nothing.

    Args:
        to: Version to go back to. Default: the previous one.
    """


@command("workspace", opt.table, panel=UNDO)
def forget(
    ids: Annotated[list[int] | None, Argument(min=0, max=2**63 - 1)] = None,
    *,
    like: Path | None = None,
    hashes: Annotated[list[str] | None, Option("--hash")] = None,
) -> None:
    """Delete items for good, from the memory and from the file on disk.

    Args:
        ids: Item ids, in the order of arrival, from 0; log shows them.
        like: A file or folder: forget all items with the same content.
        hashes: A content hash; repeat for more.
    """
    if not (ids or like or hashes):
        raise BadParameter("say which items: their ids, --like DATA, or --hash")
    if any(not re.fullmatch("[0-9a-fA-F]{32}", digest) for digest in hashes or []):
        raise BadParameter("a hash is 32 hexadecimal digits")


@command("report", panel=INSPECT)
def report(*, version: int | None = None, to: Path | None = None) -> None:
    """Write the HTML report of a version, and print its summary.

    Args:
        version: The version. Default: the newest.
        to: The file. Default: reports/version-N.html in the workspace.
    """


@command("report", panel=INSPECT)
def history(*, to: Path | None = None) -> None:
    """Write an HTML page over all versions: quality, drift, cost, neighbours kept.

    Args:
        to: The file. Default: reports/history.html in the workspace.
    """


@command("workspace", opt.code, panel=USE)
def serve(
    *,
    index: Annotated[Path | None, Option(exists=True, file_okay=False)] = None,
    host: str = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535)] = 8000,
    workers: opt.Count = 1,
    token: Annotated[str | None, Option(envvar="INCONTRAST_TOKEN")] = None,
    token_file: Annotated[Path | None, Option(exists=True, dir_okay=False)] = None,
    batch_size: opt.Count = 64,
    max_items: opt.Count = 1024,
    max_bytes: opt.Count = 2**24,
    max_waiting: opt.Count = 8192,
) -> None:
    """Serve embeddings over HTTP; new versions are swapped in without downtime.

    Args:
        index: Folder of an index to search in. Default: no search.
        host: Address to listen on; any but localhost needs a token.
        port: Port to listen on.
        workers: Number of processes, each with its own encoder.
        token: Token that clients must send; safer in the environment than on the command line.
        token_file: A file with the token.
        batch_size: Largest number of items in a forward pass.
        max_items: Largest number of items in a request.
        max_bytes: Largest request body, in bytes.
        max_waiting: Largest number of waiting items; more are refused.
    """
    if token and token_file:
        raise BadParameter("give --token or --token-file, not both")
    if max_waiting < max_items:
        raise BadParameter(f"--max-waiting must be at least --max-items, which is {max_items}")
    if not (token or token_file or re.fullmatch(r"localhost|127(\.\d+){3}|::1", host)):
        raise BadParameter(f"others can reach {host!r}: give --token or --token-file")


@command("compare", common=(), panel=TRY)
def demo(*, seed: int = 0, out: Path = Path("demo.html")) -> None:
    """Train on seven digit classes, then add three new ones with six strategies.

    Args:
        seed: The same seed gives the same losses.
        out: HTML page to write, with the loss over time.
    """
    _check_page(out)


@command("compare", opt.network, opt.table, common=(), panel=TRY)
def compare(
    old: Path,
    new: Path,
    *,
    minutes: Annotated[float, Option(min=0.01)] = 5.0,
    items: Annotated[int, Option(min=8)] = 2000,
    seed: Annotated[int, Option(min=0)] = 0,
    out: Path | None = None,
    workspace: Annotated[Path | None, Option("--workspace", "-w")] = None,
) -> None:
    """Compare the strategies on your own data within a time limit, and recommend one.

    Images are resized to at most 32 pixels unless a size or an encoder is given, since larger ones
    take many times as long.

    Args:
        old: What came first: a folder or a file of items.
        new: What came later, of the same kind.
        minutes: Time limit for everything, in minutes.
        items: Largest number of items, old and new together.
        seed: Random seed for drawing items.
        out: HTML report to write.
        workspace: Workspace whose table options to use.
    """
    if out is not None:
        _check_page(out)


def _check_page(out: Path) -> None:
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise BadParameter(f"--out must name a file in a folder that exists, got {str(out)!r}")
