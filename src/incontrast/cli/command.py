"""A command: declared with typer alone, carried out by a module that is imported when it runs.

So ``--help`` and complaints about options need not wait for torch, ``status`` neither, and the
modules that do the work have ordinary imports.
"""

import copy
import inspect
import os
import re
import time
import tomllib
from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from incontrast.cli.output import emit, plain, processes, say, speaks
from incontrast.text import addressed

GRACE = 2.0  # seconds
SERVING = "the current version keeps serving; the same command resumes"
UNTOUCHED = "the workspace is as it was"
NOTHING = "nothing was changed"
FIRST = "there is no version yet; the same command resumes"
NOT_CREATED = "the workspace is not created yet; run it again"
# By an interrupted command; fit and adopt are refused once there is a version.
LEFT = {"init": NOT_CREATED, "fit": FIRST, "adopt": FIRST}


class Exit(IntEnum):
    """What the exit code of a command means."""

    DONE = 0
    BUG = 1  # something nobody thought of; comes with a traceback
    USAGE = 2  # the command line is wrong
    DATA = 3  # the data cannot be used
    BUSY = 4  # another process is writing to the workspace
    DAMAGED = 5  # a file of the workspace is damaged or of another format
    REFUSED = 6  # the candidate was not promoted
    MACHINE = 7  # no space, no permission, a disk that fails, a package that is not installed
    DRIFT = 8  # drift --fail-on-drift found drift
    STATE = 9  # the workspace is in no state to do this
    INTERRUPTED = 130


# By name: to recognise an error, the module that defines it need not be imported.
CODES = {
    "Busy": Exit.BUSY,
    "Damaged": Exit.DAMAGED,
    "WorkspaceError": Exit.STATE,
    "Untrusted": Exit.STATE,
    "StoreBusy": Exit.BUSY,
    "StoreUnwritable": Exit.MACHINE,
    "StoreError": Exit.DAMAGED,
    "TrainingDiverged": Exit.REFUSED,
    "LostProcess": Exit.MACHINE,
    "ProcessFailed": Exit.MACHINE,
    "FileNotFoundError": Exit.DATA,
    "ImportError": Exit.MACHINE,
    "OSError": Exit.MACHINE,
    "ValueError": Exit.DATA,
}


@dataclass(frozen=True)
class Answer:
    """What a command has found or done."""

    value: Any  # for machines, printed as JSON
    lines: Iterable[str]  # for people
    exit: Exit = Exit.DONE


class _PlainFlags:
    """Shows flags in the help without the type of a value, which they do not take."""

    def get_params(self, context: Any) -> list[Any]:
        found: list[Any] = super().get_params(context)  # type: ignore[misc]
        for each in found:
            if getattr(each, "is_flag", False):
                each.metavar = ""
        return found


class Group(_PlainFlags, TyperGroup): ...


class Command(_PlainFlags, TyperCommand): ...


def command(
    app: typer.Typer,
    module: str,
    *groups: Callable[..., None],
    workspace: bool = True,
    torchrun: bool = False,
    panel: str,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a declaration: a signature, a docstring, and checks of its options.

    The function of the same name in ``incontrast.cli.<module>`` does the work that the docstring
    says. It takes all options as one ``Namespace`` and returns an ``Answer``, or None if there is
    nothing to print. The parameters of ``groups`` are options as well, which it gets as a dict by
    the group's name and which the help shows under the group's docstring, and of a command that
    works on a ``workspace`` ``--json`` and ``--config``. With ``torchrun``, several processes can
    run it together. ``begun`` is when it began by ``time.perf_counter``: imports take seconds.
    ``panel`` is its group in the list of commands.
    """

    def declare(check: Callable[..., None]) -> Callable[..., None]:
        name = check.__name__

        @wraps(check)
        def run(as_json: bool = False, config: Path | None = None, **options: Any) -> None:
            args = Namespace(begun=time.perf_counter())
            for group in groups:
                names = inspect.signature(group).parameters
                setattr(args, group.__name__, {each: options.pop(each) for each in names})
            vars(args).update(options)
            if processes() > 1 and not torchrun:
                message = f"{name} is for one process: leave torchrun away"
                _end(message, Exit.USAGE, as_json, silent=not speaks())
            try:
                check(**options)
            except typer.BadParameter as error:
                error.message = plain(error.message)
                raise
            try:
                answer: Answer | None = getattr(import_module(f"{__package__}.{module}"), name)(
                    args
                )
                if answer is not None and speaks():
                    if as_json:
                        emit(answer.value)
                    else:
                        say(with_workspace("\n".join(answer.lines), options))
            except KeyboardInterrupt:
                left = LEFT.get(name, SERVING if workspace else NOTHING)
                _end(f"interrupted: {left}", Exit.INTERRUPTED, as_json)
            except Exception as error:
                code = exit_code(error)
                if code is None:
                    raise
                message = str(error)
                if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                    place = f" ({error.filename})" if error.filename else ""
                    left = UNTOUCHED if workspace else NOTHING
                    message = f"{error.strerror or error}{place}: {left}; run it again"
                message = with_workspace(message, options)
                # What every process has met, the first one says.
                shared = type(error).__name__ in ("TrainingDiverged", "ProcessFailed")
                _end(message, code, as_json, silent=shared and not speaks())
            if answer is not None and answer.exit:
                raise typer.Exit(answer.exit)

        about, declared = _declared(check)
        for group in (*groups, *([_machines] if workspace else [])):
            title, options = _declared(group)
            for option in options:
                get_args(option.annotation)[1].rich_help_panel = title.rstrip(".")
            declared += options
        run.__signature__ = inspect.Signature(declared)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in declared}
        return app.command(cls=Command, help=about, rich_help_panel=panel)(run)

    return declare


def _declared(source: Callable[..., None]) -> tuple[str, list[inspect.Parameter]]:
    """What a docstring says, and the parameters as typer has them, with help from its ``Args``.

    Positional parameters are arguments, the others options; a bool is a flag. "Default: " begins
    what the help shows as a default.
    """
    text, _, section = (inspect.getdoc(source) or "").partition("\n\nArgs:\n")
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    entries = re.split(r"^    (\w+): ", section, flags=re.MULTILINE)[1:]
    told = dict(zip(entries[::2], entries[1::2], strict=True))
    declared = []
    for name, parameter in inspect.signature(source, eval_str=True).parameters.items():
        option = parameter.kind is parameter.KEYWORD_ONLY
        kind, given = parameter.annotation, typer.Option() if option else typer.Argument()
        if get_origin(kind) is Annotated:
            kind, given = get_args(kind)
        info = copy.copy(given)
        if name in told:
            info.help, _, default = " ".join(told[name].split()).partition(" Default: ")
            info.show_default = default.removesuffix(".") or info.show_default
        if kind is bool and info.default is ...:  # a name of its own would be there
            info.param_decls = (f"--{name.replace('_', '-')}",)
        parameter = parameter.replace(kind=parameter.KEYWORD_ONLY)
        declared.append(parameter.replace(annotation=Annotated[kind, info]))
    return "\n\n".join(paragraphs), declared


def exit_code(error: Exception) -> Exit | None:
    """The code of an error, or of the nearest class it derives from; None for a bug.

    >>> exit_code(UnicodeError("0xff"))
    <Exit.DATA: 3>
    """
    for kind in type(error).__mro__:
        code = CODES.get(kind.__name__)
        if code is Exit.STATE and isinstance(error.__cause__, OSError):
            return Exit.MACHINE
        if code is not None:
            return code
    return None


def with_workspace(text: str, options: dict[str, Any]) -> str:
    """Text whose commands name the workspace, where this one had to."""
    folder = str(options.get("workspace") or ".")
    here = folder in (".", os.environ.get("INCONTRAST_WORKSPACE"))
    return text if here else addressed(text, folder)


def _end(message: str, code: Exit, as_json: bool, *, silent: bool = False) -> NoReturn:
    if silent:
        # torchrun ends all processes once one has ended, the one that speaks as well.
        time.sleep(GRACE)
    elif as_json:
        emit({"error": message, "exit": int(code)}, indent=None)
    else:
        typer.echo(plain(f"incontrast: {message}"), err=True)
    raise typer.Exit(code) from None


def _defaults(context: typer.Context, path: Path | None) -> Path | None:
    """Take defaults from the file's table of this command's name."""
    if path is None:
        return None
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise typer.BadParameter(plain(f"{path} cannot be read: {error}")) from error
    name = context.info_name or ""
    table = tables.get(name, {})
    commands = getattr(context.parent.command if context.parent else None, "commands", tables)
    known = {_setting(max(each.opts, key=len)): each.name for each in context.command.params}
    settings = table if isinstance(table, dict) else {}
    settings = {_setting(name): value for name, value in settings.items()}
    problem = None
    if unknown := sorted(set(tables) - set(commands)):
        problem = f"{unknown[0]!r} is not a command: settings stand in a table of a command's name"
    elif not isinstance(table, dict):
        problem = f"{name} must be a table, [{name}]"
    elif unknown := sorted(set(settings) - set(known)):
        problem = f"[{name}] has no setting {unknown[0]!r}"
    if problem:
        raise typer.BadParameter(plain(f"{path}: {problem}"))
    context.default_map = {str(known[name]): value for name, value in settings.items()}
    return path


def _setting(option: str) -> str:
    """An option's name in a file, without regard to dashes."""
    return option.lstrip("-").replace("-", "_")


def _machines(
    *,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    config: Annotated[Path | None, typer.Option(callback=_defaults, is_eager=True)] = None,
) -> None:
    """Automation.

    Args:
        as_json: Print the result as JSON.
        config: TOML file with defaults, one table per command; options override it.
    """
