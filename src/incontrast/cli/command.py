"""Commands are declared with typer alone; the module that carries one out is imported to run it.

So ``--help`` and wrong options need not wait for torch, and neither does ``status``.
"""

import copy
import inspect
import os
import re
import time
import tomllib
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from incontrast.cli.options import place
from incontrast.cli.output import emit, is_first, plain, processes, say
from incontrast.text import addressed

Declaration = Callable[..., None]

GRACE = 2.0  # seconds
AGAIN = "what was complete is kept; run the same command again"


class Exit(IntEnum):
    """What the exit code of a command means."""

    DONE = 0
    BUG = 1  # an unexpected error, with a traceback
    USAGE = 2  # the command line is wrong
    DATA = 3  # the data cannot be used
    BUSY = 4  # another process is writing to the workspace
    DAMAGED = 5  # a file of the workspace is damaged or of another format
    REFUSED = 6  # the candidate was not promoted
    MACHINE = 7  # no space, no permission, a failing disk, a package that is not installed
    DRIFT = 8  # drift --fail-on-drift found drift
    STATE = 9  # the state of the workspace does not allow it
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
    """The result of a command."""

    value: Any  # printed with --json
    lines: Iterable[str]  # printed otherwise
    exit: Exit = Exit.DONE


class _PlainFlags:
    """Shows flags in the help without the type of a value, which they do not take."""

    def format_help(self, context: Any, formatter: Any) -> None:
        for param in self.get_params(context):  # type: ignore[attr-defined]
            if getattr(param, "is_flag", False):
                param.metavar = ""
        super().format_help(context, formatter)  # type: ignore[misc]


class Group(_PlainFlags, TyperGroup): ...


class Command(_PlainFlags, TyperCommand): ...


def _defaults(context: typer.Context, path: Path | None) -> Path | None:
    """Take defaults from the table of this command in a file."""
    if path is None:
        return None
    name, parent = context.info_name or "", context.parent
    assert parent is not None
    params = {_setting(max(param.opts, key=len)): param.name for param in context.command.params}
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        if unknown := set(tables) - set(parent.command.commands):  # type: ignore[attr-defined]
            raise ValueError(f"{min(unknown)!r} is not a command: name a table by its command")
        settings = {_setting(option): value for option, value in dict(tables.get(name, {})).items()}
        if unknown := settings.keys() - params.keys():
            raise ValueError(f"[{name}] has no setting {min(unknown)!r}")
    except (OSError, TypeError, ValueError) as error:
        raise typer.BadParameter(f"{str(path)!r} cannot be used: {plain(str(error))}") from error
    context.default_map = {str(params[option]): value for option, value in settings.items()}
    return path


def _setting(option: str) -> str:
    """An option's name in a file, without regard to dashes."""
    return option.lstrip("-").replace("-", "_")


def automation(
    *,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    config: Annotated[Path | None, typer.Option(callback=_defaults, is_eager=True)] = None,
) -> None:
    """Automation.

    Args:
        as_json: Print the result as JSON.
        config: TOML file with defaults, one table per command; options override it.
    """


app = typer.Typer(
    name="incontrast",
    cls=Group,
    help="Keep a self-supervised encoder up to date.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def command(
    module: str,
    *groups: Declaration,
    common: Sequence[Declaration] = (place, automation),
    torchrun: bool = False,
    panel: str,
) -> Callable[[Declaration], Declaration]:
    """Make a command of a declaration: a signature, a docstring, and checks of its options.

    The function of the same name in ``incontrast.cli.<module>`` does the work. It takes all options
    as one ``Namespace`` and returns an ``Answer``, or None if there is nothing to print. ``groups``
    and ``common`` declare more options, which the help shows under the docstring of the group; the
    ``Namespace`` also has those of a group as a dict by its name. With ``torchrun``, several
    processes can run the command together. ``panel`` is its place in the list of commands.
    """

    def declare(check: Declaration) -> Declaration:
        name = check.__name__

        @wraps(check)
        def run(**values: Any) -> None:
            args = Namespace(begun=time.perf_counter(), **values)  # imports take seconds
            for group in groups:
                setattr(args, group.__name__, {option: values[option] for option in _names(group)})
            as_json = values.get("as_json", False)
            if processes() > 1 and not torchrun:
                _end(f"{name} is for one process: leave torchrun away", Exit.USAGE, as_json)
            check(**{option: values[option] for option in _names(check)})
            try:
                work = getattr(import_module(f"{__package__}.{module}"), name)
                answer: Answer | None = work(args)
                if answer is not None and is_first():
                    if as_json:
                        emit(answer.value)
                    else:
                        say(with_workspace("\n".join(answer.lines), values))
            except KeyboardInterrupt:
                _end(f"interrupted: {AGAIN}", Exit.INTERRUPTED, as_json, every_process=True)
            except Exception as error:
                code = exit_code(error)
                if code is None:
                    raise
                message = with_workspace(_message(error), values)
                shared = type(error).__name__ in ("TrainingDiverged", "ProcessFailed")
                _end(message, code, as_json, every_process=not shared)
            if answer is not None and answer.exit:
                raise typer.Exit(answer.exit)

        about, parameters = _declared(check)
        for group in (*groups, *common):
            title, others = _declared(group)
            for parameter in others:
                get_args(parameter.annotation)[1].rich_help_panel = title.rstrip(".")
            parameters += others
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return app.command(cls=Command, help=about, rich_help_panel=panel)(run)

    return declare


def _names(source: Declaration) -> Iterable[str]:
    return inspect.signature(source).parameters


def _declared(source: Declaration) -> tuple[str, list[inspect.Parameter]]:
    """The text of a docstring, and the parameters for typer, with help from its ``Args``.

    Keyword-only parameters are options, the others arguments; a bool is a flag. In the help of an
    option, "Default: " begins what is shown as its default.
    """
    text, _, section = (inspect.getdoc(source) or "").partition("\n\nArgs:\n")
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    entries = re.split(r"^    (\w+): ", section, flags=re.MULTILINE)[1:]
    helps = dict(zip(entries[::2], entries[1::2], strict=True))
    parameters = []
    for name, parameter in inspect.signature(source, eval_str=True).parameters.items():
        is_option = parameter.kind is parameter.KEYWORD_ONLY
        kind, info = parameter.annotation, typer.Option() if is_option else typer.Argument()
        if get_origin(kind) is Annotated:
            kind, info = get_args(kind)
            info = copy.copy(info)
        if name in helps:
            info.help, _, default = " ".join(helps[name].split()).partition(" Default: ")
            info.show_default = default.removesuffix(".") or info.show_default
        if kind is bool and info.default is ...:  # without a name, typer would add --no-...
            info.param_decls = (f"--{name.replace('_', '-')}",)
        parameter = parameter.replace(kind=parameter.KEYWORD_ONLY)
        parameters.append(parameter.replace(annotation=Annotated[kind, info]))
    return "\n\n".join(paragraphs), parameters


def exit_code(error: Exception) -> Exit | None:
    """The code of an error, or of the nearest class it derives from; None for a bug.

    >>> exit_code(UnicodeError("0xff"))
    <Exit.DATA: 3>
    """
    names = [kind.__name__ for kind in type(error).__mro__]
    code = next((CODES[name] for name in names if name in CODES), None)
    failing_disk = code is Exit.STATE and isinstance(error.__cause__, OSError)
    return Exit.MACHINE if failing_disk else code


def with_workspace(text: str, values: dict[str, Any]) -> str:
    """Text whose commands name the workspace, if this one had to."""
    folder = str(values.get("workspace") or ".")
    is_default = folder in (".", os.environ.get("INCONTRAST_WORKSPACE"))
    return text if is_default else addressed(text, folder)


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        place = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror or error}{place}: {AGAIN}"
    return str(error)


def _end(message: str, code: Exit, as_json: bool, *, every_process: bool = False) -> NoReturn:
    if not (every_process or is_first()):
        time.sleep(GRACE)  # torchrun ends all processes once one has ended: let the first one print
    elif as_json:
        emit({"error": message, "exit": int(code)}, indent=None)
    else:
        typer.echo(plain(f"incontrast: {message}"), err=True)
    raise typer.Exit(code) from None
