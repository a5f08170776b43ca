"""How commands declare options: panels of the help, and groups that several commands share.

A group is a `TypedDict` or a frozen dataclass of annotated options. A command takes it as one
parameter, and `guarded` expands it into the options of the command line::

    class RunOptions(TypedDict):
        run: RunFolderOption
        new: NewOption

    def train(env: EnvOption, into: RunOptions) -> None: ...   # cwm train --env, --run, --new
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import partial, wraps
from inspect import Parameter
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

import typer
from typer.models import OptionInfo

from cwm_cli.cli.boundary import boundary

PANELS = ("Basics", "Data", "Model", "Limits", "Advanced")
"""The panels of options in the help of a command, in this order."""

basic_option, data_option, model_option, limit_option, advanced_option = (
    partial(typer.Option, rich_help_panel=panel) for panel in PANELS
)

METAVARS = {bool: "", int: "INT", float: "FLOAT", str: "TEXT", Path: "FILE"}
"""The placeholder of a value in the help, by type; Typer would print `<int>` and `<bool>`."""


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Prepare a function for Typer: expand its groups, and report users' errors in one line."""
    parameters: list[Parameter] = []
    groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind = parameter.annotation
        if is_dataclass(kind) or is_typeddict(kind):
            fields = list(_fields(kind))
            groups[parameter.name] = (kind, [field.name for field in fields])
            parameters += fields
        else:
            parameters.append(_with_default(parameter.replace(kind=Parameter.KEYWORD_ONLY)))
    parameters.sort(key=_panel_position)  # stable: keeps the order of declaration in a panel
    for parameter in parameters:
        info = option_info(parameter)
        if info is not None and info.metavar is None:  # the placeholder of a value in the help
            kind, _ = value_type(parameter)
            choices = "|".join(get_args(kind)) if get_origin(kind) is Literal else None
            info.metavar = METAVARS.get(kind, choices)

    @wraps(command)
    def inside(**values: Any) -> None:
        with boundary():
            if env := values.get("env"):
                from cwm_cli.envs.spec import name_in_file

                # Python files get the names of the environments in them.
                one = isinstance(env, str)
                values["env"] = name_in_file(env) if one else list(map(name_in_file, env))
            filled = {
                name: group(**{field: values.pop(field) for field in fields})
                for name, (group, fields) in groups.items()
            }
            command(**values, **filled)

    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    inside.__doc__ = "\n\n".join(" ".join(each.split()) for each in paragraphs)  # Typer wraps them
    # Typer reads the options from the signature and from the annotations
    inside.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    inside.__annotations__ = {each.name: each.annotation for each in parameters}
    return inside


def option_info(parameter: Parameter) -> OptionInfo | None:
    """Return the declaration of an option, None for arguments and the context."""
    metadata = getattr(parameter.annotation, "__metadata__", ())
    return next((info for info in metadata if isinstance(info, OptionInfo)), None)


def value_type(parameter: Parameter) -> tuple[Any, bool]:
    """Return the type of one value of a parameter, and whether the parameter is repeatable."""
    kind = parameter.annotation
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if NoneType in get_args(kind):
        kind = next(each for each in get_args(kind) if each is not NoneType)
    if get_origin(kind) is list:
        return get_args(kind)[0], True
    return kind, False


def _fields(group: Any) -> Iterator[Parameter]:
    for name, annotation in get_type_hints(group, include_extras=True).items():
        default = getattr(group, name, Parameter.empty)
        yield _with_default(
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )


def _with_default(parameter: Parameter) -> Parameter:
    """Make a parameter without a default None, empty or false if its type allows that."""
    if parameter.default is not Parameter.empty:
        return parameter
    if get_origin(parameter.annotation) is Annotated:
        bare = get_args(parameter.annotation)[0]
        if NoneType in get_args(bare):
            return parameter.replace(default=None)
        if option_info(parameter) and get_origin(bare) is list:
            return parameter.replace(default=[])
        if option_info(parameter) and bare is bool:
            return parameter.replace(default=False)
    return parameter


def _panel_position(parameter: Parameter) -> int:
    info = option_info(parameter)
    if info is None:
        return -1
    return PANELS.index(info.rich_help_panel) if info.rich_help_panel in PANELS else len(PANELS)
