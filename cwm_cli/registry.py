"""Load plugins, look up the parts that they provide, and parse the options of parts."""

import ast
import inspect
import json
import logging
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import Distribution, EntryPoint, distribution, entry_points
from itertools import pairwise
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    get_args,
    get_origin,
    get_type_hints,
)

import pluggy

from cwm_cli.envs.variants import with_variants
from cwm_cli.errors import CwmError, UnknownNameError
from cwm_cli.hookspecs import (
    CORE,
    CORE_EXAMPLES,
    CORE_POINTS,
    ExtensionPoint,
    Hooks,
    Kind,
    hookspec,
)
from cwm_cli.presets import preset_values, values_for_others
from cwm_cli.text import describe_requirement, read_value

if TYPE_CHECKING:
    from cwm_cli.envs.spec import EnvironmentSpec

log = logging.getLogger("cwm.plugins")

Role = str
"""A choice that has a default in a plugin; see the hook `cwm_defaults`."""

ELSEWHERE = "run `cwm plugins` for the known ones, or name your own: MODULE:NAME or FILE.py"


class Plugin(NamedTuple):
    """An installed plugin: the name of its entry point, its package, and its module."""

    name: str
    package: str
    module: Any


class Plugins(NamedTuple):
    """The loaded plugins, with a warning for each plugin that failed to load."""

    manager: pluggy.PluginManager
    loaded: tuple[Plugin, ...]
    warnings: tuple[str, ...]
    points: Mapping[Kind, ExtensionPoint]


@cache
def plugins() -> Plugins:
    """Load all installed plugins once; a plugin that fails to import only adds a warning."""
    manager = pluggy.PluginManager("cwm")
    manager.add_hookspecs(Hooks)
    loaded, warnings, points = [], [], dict(CORE_POINTS)
    for entry in sorted(entry_points(group="cwm"), key=lambda entry: entry.name):
        try:
            module = entry.load()
            added_points: Mapping[Kind, ExtensionPoint] = getattr(
                module, "cwm_extension_points", dict
            )()
        except Exception as error:  # noqa: BLE001  # third-party code may raise anything
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            warnings.append(f"the plugin {entry.name!r} ({_package(entry)}) is left out: {reason}")
            continue
        loaded.append(Plugin(entry.name, _package(entry), module))
        points |= added_points
    added = {point.hook: _offer for kind, point in points.items() if kind not in CORE_POINTS}
    manager.add_hookspecs(type("AddedHooks", (), added))
    for plugin in loaded:
        manager.register(plugin.module, name=f"{plugin.name} of {plugin.package}")
    return Plugins(manager, tuple(loaded), tuple(warnings), points)


@hookspec
def _offer(self: Any) -> Mapping[str, Any]:
    """Return names and factories, or the addresses of factories."""
    raise NotImplementedError


def extension_points() -> Mapping[Kind, ExtensionPoint]:
    """Return the extension points of the core and of all plugins, by kind."""
    return plugins().points


def functions() -> Mapping[str, str]:
    """Return the addresses of the functions that plugins add to the Python API."""
    return _merge_mappings("cwm_functions")


def option_groups() -> Mapping[str, Any]:
    """Return the option groups that plugins add, by name."""
    return {name: _resolve(entry) for name, entry in _merge_mappings("cwm_option_groups").items()}


def conformance_example(kind: Kind, name: str) -> Any:
    """Return the function that makes an example of the part `plugin:name`, or None."""
    label, _, part = name.partition(":")
    hooks = (
        getattr(plugin.module, "cwm_test_examples", dict)
        for plugin in plugins().loaded
        if plugin.name == label
    )
    examples = CORE_EXAMPLES if label == "core" else next(hooks, dict)()
    return _resolve(examples.get(f"{kind} {part}"))


def _merge_mappings(hook: str) -> dict[str, str]:
    merged: dict[str, str] = {}
    for plugin in plugins().loaded:
        merged |= getattr(plugin.module, hook, dict)()
    return merged


@cache
def check_hooks() -> None:
    """Check the names of the hooks of all plugins, once.

    Raises:
        CwmError: A plugin has a hook with an unknown name or signature.
    """
    manager = plugins().manager
    callers = vars(manager.hook).items()
    known = [name for name, caller in callers if name[0] != "_" and caller.has_spec()]
    for plugin in plugins().loaded:
        for name, hook in vars(plugin.module).items():
            if manager.parse_hookimpl_opts(plugin.module, name) and name not in known:
                similar = get_close_matches(name, known, n=1)
                hint = f"did you mean {similar[0]}?" if similar else "fix or uninstall the plugin"
                raise CwmError(f"{plugin.package} has an unknown hook {hook.__name__}: {hint}")
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise CwmError(
            f"a plugin has an invalid hook: {' '.join(str(error).split())}; fix or uninstall "
            "the plugin"
        ) from error


def iterate_parts(kind: Kind) -> Iterator[tuple[Plugin, Mapping[str, Any]]]:
    """Yield the core and each plugin with the parts of a kind that it provides, by name."""
    check_hooks()
    if kind in CORE:
        yield Plugin("core", core_package(), None), _resolve(CORE[kind])
    for plugin in plugins().loaded:
        hook = getattr(plugin.module, extension_points()[kind].hook, None)
        if hook is not None:
            parts = hook()
            if not isinstance(parts, Mapping):
                raise CwmError(
                    f"{hook.__name__} of {plugin.package} returned {type(parts).__name__}; it must "
                    "return a mapping from names to classes or addresses"
                )
            yield plugin, parts


def names(kind: Kind) -> list[str]:
    """Return the sorted names of a kind; a name of two plugins is listed as `package:name`."""
    providers: dict[str, list[tuple[Plugin, Mapping[str, Any]]]] = {}
    for plugin, parts in iterate_parts(kind):
        for name in parts:
            providers.setdefault(name, []).append((plugin, parts))
    found: list[str] = []
    for name, candidates in providers.items():
        owners = [plugin for plugin, _ in _prefer_primary(candidates, name)]
        found += [name] if len(owners) == 1 else [f"{each}:{name}" for each in _labels(owners)]
    return sorted(found)


def _prefer_primary(
    candidates: Sequence[tuple[Plugin, Mapping[str, Any]]], name: str
) -> list[tuple[Plugin, Any]]:
    """Return the plugins with their part; mappings with `gives_way` count only without others."""
    primary = [pair for pair in candidates if not getattr(pair[1], "gives_way", False)]
    return [(plugin, parts[without_alias(parts, name)]) for plugin, parts in primary or candidates]


def without_alias(parts: Mapping[str, Any], name: str) -> str:
    """Return the name of the part that an alias refers to; return other names unchanged."""
    entry = parts[name]
    return entry if isinstance(entry, str) and entry in parts else name


def full_name(kind: Kind, name: str) -> str:
    """Return the name of the part that an alias of any plugin refers to, or the name itself."""
    targets = (without_alias(parts, name) for _, parts in iterate_parts(kind) if name in parts)
    return next((target for target in targets if target != name), name)


def is_known(kind: Kind, name: str) -> bool:
    """Return whether a plugin provides `name` or `package:name`."""
    return bool(_owners(kind, name))


def _owners(kind: Kind, name: str) -> list[tuple[Plugin, Any]]:
    providers = list(iterate_parts(kind))
    label, _, part = name.partition(":")
    return [
        (plugin, parts[without_alias(parts, part)])
        for plugin, parts in providers
        if label in (plugin.name, plugin.package.split()[0]) and part in parts
    ] or _prefer_primary([(plugin, parts) for plugin, parts in providers if name in parts], name)


def find(kind: Kind, name: str) -> Any:
    """Return the part `name` or `package:name`, imported if a plugin gave its address.

    The package is the distribution of the plugin, or the name of its entry point.

    Raises:
        UnknownNameError: No plugin provides the part.
        CwmError: Several plugins provide it, or it cannot be imported, or it does not have the
            base class or the arguments of its kind.
    """
    owners = _owners(kind, name)
    if len(owners) > 1:
        providers = [plugin for plugin, _ in owners]
        packages = " and ".join(sorted({plugin.package for plugin in providers}))
        choices = " or ".join(f"{label}:{name}" for label in _labels(providers))
        raise CwmError(f"{packages} both provide the {kind} {name!r}: write {choices}")
    if not owners:
        known = (n for _, parts in iterate_parts(kind) for n in parts)
        raise UnknownNameError(kind, name, known, ELSEWHERE if kind == "environment" else "")
    plugin, entry = owners[0]
    _log_owner(kind, name, f"{plugin.package} ({plugin.name})")
    try:
        found, base = _resolve(entry), base_of(kind)
    except (ImportError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise CwmError(
            f"the {kind} {name!r} of {plugin.package} cannot be loaded ({reason}): "
            "fix or reinstall it"
        ) from error
    for fault in _find_faults(kind, found, base):
        raise CwmError(f"the {kind} {name!r} of {plugin.package} is invalid: {fault}")
    return found


def _find_faults(kind: Kind, found: Any, base: type | None) -> Iterator[str]:
    """Yield the reasons why an object cannot be a part of a kind."""
    point = extension_points()[kind]
    if not callable(found):
        yield f"{type(found).__name__} is no class, function or address"
    if base is None or not isinstance(found, type):
        return
    if not issubclass(found, base):
        yield f"it must be a subclass of {base.__module__}.{base.__name__}"
    for argument in point.arguments:
        if argument not in inspect.signature(found).parameters:
            yield f"the class {found.__name__} needs a field {argument!r}"
    for name, hint in base.__annotations__.items():
        if "ClassVar" in str(hint) and not hasattr(found, name):
            yield f"the class {found.__name__} must define {name}"
    # Problems are created with their data, all other parts with their options only.
    if point.has_options and kind != "problem" and is_dataclass(found):
        for field in fields(found):
            is_required = field.default is MISSING and field.default_factory is MISSING
            if field.init and is_required and field.name not in point.arguments:
                yield f"the field {field.name!r} of {found.__name__} needs a default value"


@cache
def _log_owner(kind: Kind, name: str, owner: str) -> None:
    """Log the owner of a part; the cache keeps repeated look-ups from logging it again."""
    log.debug("the %s %r is provided by %s", kind, name, owner)


def base_of(kind: Kind) -> type | None:
    """Return the base class of a kind, None for environments, which are functions."""
    base: type | None = _resolve(extension_points()[kind].base)
    return base


def environment(name: str) -> "EnvironmentSpec":
    """Return an environment by name; its `make` also accepts `shift`, `hide` and `noise`."""
    spec = find("environment", name)()
    from cwm_cli.envs.checking import with_checks  # imports gymnasium, as the plugins do

    return with_checks(with_variants(spec))


def default(role: Role) -> str:
    """Return the name of the default part of a role; `CwmError` if no plugin defines one."""
    check_hooks()
    for plugin in plugins().loaded:
        hook = getattr(plugin.module, "cwm_defaults", None)
        if hook is not None and role in (chosen := hook()):
            name: str = chosen[role]
            return name
    raise CwmError(f"no plugin defines a default {role}: choose one")


class Option(NamedTuple):
    """A key that `-o` accepts: its name, type, default value and meaning."""

    name: str
    type: str
    default: Any
    meaning: str


class Owner(NamedTuple):
    """A dataclass with options, and its label in `-o LABEL.KEY=VALUE`.

    The options are the fields with a default, except `model`, which has its own flag, and fields
    with the metadata `{"option": False}`.
    """

    label: str
    factory: Any

    @property
    def options(self) -> "dict[str, Field[Any]]":
        """The fields that a user may set, by name."""
        if not is_dataclass(self.factory):
            return {}
        return {
            field.name: field
            for field in fields(self.factory)
            if field.init
            and field.name != "model"
            and field.metadata.get("option", True)
            and not (field.default is MISSING and field.default_factory is MISSING)
        }

    def make(self, options: Mapping[str, Any]) -> Any:
        """Create the part; `CwmError` if it refuses a value by a `ValueError`."""
        try:
            return self.factory(**options)
        except ValueError as error:
            raise CwmError(f"invalid option of {self.label}: {error}") from error

    def identity(self, made: Any) -> dict[str, Any]:
        """Return the option values that identify a run.

        An option with the metadata `{"identity": False}` is left out. One with
        `{"identity": "changed"}` is left out at its default value, so that runs from before this
        option continue.
        """
        found = {}
        for name, field in self.options.items():
            keep, value = field.metadata.get("identity", True), getattr(made, name)
            if value != field.default if keep == "changed" else keep:
                found[name] = value
        return found

    def defaults(self) -> dict[str, Any]:
        """Return the default values of the options, including values of the default preset."""
        values = {
            name: field.default if field.default_factory is MISSING else field.default_factory()
            for name, field in self.options.items()
        }
        return values | preset_values(self.factory, str(values.get("preset")))

    def describe_options(self) -> list[Option]:
        """Return every option with its meaning, which is the docstring below the field.

        The meaning of the option `preset` also lists the values that each preset sets.
        """
        hints = get_type_hints(self.factory) if self.options else {}
        meanings, defaults = field_docstrings(self.factory), self.defaults()
        for preset, values in getattr(self.factory, "PRESETS", {}).items():
            if preset != defaults.get("preset"):
                given = ", ".join(f"{name}={value}".lower() for name, value in values.items())
                meanings["preset"] = f"{meanings.get('preset', '')} {preset}: {given}.".strip()
        return [
            Option(name, _type_words(hints[name]), defaults[name], meanings.get(name, ""))
            for name in self.options
        ]


def field_docstrings(kind: type) -> dict[str, str]:
    """Return the docstring below each field of a class and of its bases, in one line."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):
            continue  # a built-in class, or one from an interactive prompt
        body = ast.parse(source).body[0]
        statements = body.body if isinstance(body, ast.ClassDef) else []
        for statement, below in pairwise(statements):
            match statement, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(words))),
                ):
                    found[name] = " ".join(words.split())
    return found


def read_options(
    given: Sequence[str] | Mapping[str, Any], owners: list[Owner]
) -> dict[str, dict[str, Any]]:
    """Parse options as the types of their fields.

    Args:
        given: Texts `[OWNER.]KEY=VALUE`, or a mapping from `[OWNER.]KEY` to values.
        owners: The parts that may have the options.

    Returns:
        Values by label of the owner and name of the option.

    Raises:
        CwmError: An option is unknown or ambiguous, or its value is invalid.
    """
    pairs = list(given.items()) if isinstance(given, Mapping) else [_split(text) for text in given]
    values: dict[str, dict[str, Any]] = {owner.label: {} for owner in owners}
    for key, value in pairs:
        owner, name = _find_owner(key, owners)
        values[owner.label][name] = _parse_value(owner, name, value)
    return values


def with_presets(
    chosen: Mapping[str, Mapping[str, Any]], owners: list[Owner]
) -> dict[str, dict[str, Any]]:
    """Add the values that presets set for other owners, if the user did not set them."""
    values = {label: dict(options) for label, options in chosen.items()}
    others = {owner.label: owner for owner in owners}
    for owner in owners:
        preset = values[owner.label].get("preset", owner.defaults().get("preset"))
        for (label, name), value in values_for_others(owner.factory, str(preset)).items():
            if label in others and name in others[label].options:
                values[label].setdefault(name, value)
    return values


def _split(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        raise CwmError(f"the option {text!r} has no value: write -o {key}=VALUE")
    return key, value


def _find_owner(key: str, owners: list[Owner]) -> tuple[Owner, str]:
    label, dot, name = key.rpartition(".")
    found = [owner for owner in owners if name in owner.options and label in ("", owner.label)]
    if len(found) == 1:
        return found[0], name
    if found:
        choices = " or ".join(f"-o {owner.label}.{name}=" for owner in found)
        raise CwmError(f"the option {name!r} is ambiguous: write {choices}")
    known = [f"{owner.label}.{n}" if dot else n for owner in owners for n in owner.options]
    raise UnknownNameError("option", key, known)


def _parse_value(owner: Owner, name: str, value: Any) -> Any:
    from pydantic import TypeAdapter, ValidationError

    hint = get_type_hints(owner.factory, include_extras=True)[name]
    try:
        return TypeAdapter(hint).validate_python(_parse_literal(hint, value))
    except ValidationError as error:
        requirement = describe_requirement(error.errors()[0], _type_words(hint))
        raise CwmError(f"invalid option {name}={value}: {requirement}") from error
    except ValueError as error:
        quoted = shlex.quote(f"{name}={json.dumps(value, ensure_ascii=False)}")
        raise CwmError(f"{error}: write text in quotes, -o {quoted}") from error


def _parse_literal(hint: Any, value: Any) -> Any:
    """Parse a typed value as a literal, except for text, paths and choices of words."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    kinds = {hint, *get_args(hint)}
    if not isinstance(value, str) or get_origin(hint) is Literal:
        return value
    if type(None) in kinds and value.lower() in ("none", "null"):
        return None
    if kinds & {str, Path} and get_origin(hint) is not dict:
        return value
    try:
        literal = read_value(value)
    except ValueError:
        if kinds & {bool, int, float}:
            return value  # pydantic converts or rejects words such as "yes"
        raise
    # pydantic would convert True to the number 1, but rejects the text "True".
    return value if isinstance(literal, bool) and kinds & {int, float} else literal


def _type_words(hint: Any) -> str:
    """Return a type in the words of the command line, such as "int | none"."""
    if hint is type(None):
        return "none"
    if get_origin(hint) is Annotated:
        return _type_words(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return " | ".join(map(str, get_args(hint)))
    if get_origin(hint) is dict:
        return "JSON"
    if get_args(hint) and not isinstance(hint, type):
        return " | ".join(_type_words(part) for part in get_args(hint))
    return getattr(hint, "__name__", str(hint))


def _labels(owners: Sequence[Plugin]) -> list[str]:
    """Return distinct labels: the packages, or the names of entry points if packages repeat."""
    packages = [plugin.package.split()[0] for plugin in owners]
    unique = len(set(packages)) == len(packages)
    return sorted(packages if unique else [plugin.name for plugin in owners])


def _resolve(entry: Any) -> Any:
    """Import the object at an address `module:name`; return other values unchanged."""
    if not isinstance(entry, str):
        return entry
    module, separator, name = entry.partition(":")
    if not separator:
        raise ImportError(f"the address {entry!r} is not of the form module:name")
    return getattr(import_module(module), name)


def _package(entry: EntryPoint) -> str:
    return _named(entry.dist) if entry.dist else "unknown package"


@cache
def core_package() -> str:
    """Return the name and version of the distribution of `cwm`."""
    return _named(distribution("cwm-cli"))


@cache
def _named(distribution: Distribution) -> str:
    """Return name and version; the cache avoids parsing the metadata twice."""
    return f"{distribution.name} {distribution.version}"
