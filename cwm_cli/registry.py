"""Find plugins, look up what they provide, and read the options of what was found."""

import ast
import inspect
import json
import logging
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
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
from cwm_cli.presets import asked_of_others, preset_values
from cwm_cli.text import read_value, wanted_instead

if TYPE_CHECKING:
    from cwm_cli.envs.spec import EnvironmentSpec

log = logging.getLogger("cwm.plugins")

Role = str
"""A choice that a user may leave open: see the hook `cwm_defaults`."""

ELSEWHERE = "run `cwm plugins` for the known ones, or name your own: MODULE:NAME or FILE.py"


class Plugin(NamedTuple):
    """An installed plugin: its entry point's name, and the package that it comes from."""

    name: str
    package: str
    module: Any


class Plugins(NamedTuple):
    """The plugins that could be loaded, and the warnings about those that could not."""

    manager: pluggy.PluginManager
    loaded: tuple[Plugin, ...]
    warnings: tuple[str, ...]
    points: Mapping[Kind, ExtensionPoint]


@cache
def plugins() -> Plugins:
    """Load every installed plugin once; one that fails to import is left out with a warning."""
    manager = pluggy.PluginManager("cwm")
    manager.add_hookspecs(Hooks)
    loaded, warnings, points = [], [], dict(CORE_POINTS)
    for entry in sorted(entry_points(group="cwm"), key=lambda entry: entry.name):
        try:
            module = entry.load()
            added_points: Mapping[Kind, ExtensionPoint] = getattr(
                module, "cwm_extension_points", dict
            )()
        except Exception as error:  # noqa: BLE001  # plugins raise any exception
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
    return _offers("cwm_functions")


def option_groups() -> Mapping[str, Any]:
    """Return the groups of options that plugins add, by name."""
    return {name: _resolve(entry) for name, entry in _offers("cwm_option_groups").items()}


def conformance_example(kind: Kind, name: str) -> Any:
    """Return the function that makes an example of a part, `plugin:name`, None without one."""
    label, _, bare = name.partition(":")
    hooks = (
        getattr(each.module, "cwm_test_examples", dict)
        for each in plugins().loaded
        if each.name == label
    )
    offered = CORE_EXAMPLES if label == "core" else next(hooks, dict)()
    return _resolve(offered.get(f"{kind} {bare}"))


def _offers(hook: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for plugin in plugins().loaded:
        if offer := getattr(plugin.module, hook, None):
            found |= offer()
    return found


@cache
def check_hooks() -> None:
    """Refuse a plugin whose hook is misspelt; checked when plugins are first used."""
    try:
        plugins().manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise CwmError(
            f"a plugin has an invalid hook: {' '.join(str(error).split())}; fix or uninstall "
            "the plugin"
        ) from error


def provided(kind: Kind) -> Iterator[tuple[Plugin, Mapping[str, Any]]]:
    """Yield what the core and each plugin provide of one kind."""
    check_hooks()
    if kind in CORE:
        yield Plugin("core", core_package(), None), _resolve(CORE[kind])
    for plugin in plugins().loaded:
        hook = getattr(plugin.module, extension_points()[kind].hook, None)
        if hook is not None:
            yield plugin, hook()


def names(kind: Kind) -> list[str]:
    """Return the names that are known of one kind; where two plugins share one, `package:name`."""
    offers: dict[str, list[tuple[Plugin, Mapping[str, Any]]]] = {}
    for plugin, entries in provided(kind):
        for name in entries:
            offers.setdefault(name, []).append((plugin, entries))
    owners = {name: [plugin for plugin, _ in _first(each, name)] for name, each in offers.items()}
    labelled = (
        [name] if len(having) == 1 else [f"{label}:{name}" for label in _labels(having)]
        for name, having in owners.items()
    )
    return sorted(name for group in labelled for name in group)


def _first(
    offers: Sequence[tuple[Plugin, Mapping[str, Any]]], name: str
) -> list[tuple[Plugin, Any]]:
    """Return who provides a name, without those who give way to others."""
    chosen = [offer for offer in offers if not getattr(offer[1], "gives_way", False)] or offers
    return [(plugin, entries[name]) for plugin, entries in chosen]


def is_known(kind: Kind, name: str) -> bool:
    """Return whether a plugin provides `name` or `package:name`."""
    return bool(_owners(kind, name))


def _owners(kind: Kind, name: str) -> list[tuple[Plugin, Any]]:
    given = list(provided(kind))
    label, _, rest = name.partition(":")
    return [
        (plugin, entries[rest])
        for plugin, entries in given
        if label in (plugin.name, plugin.package.split()[0]) and rest in entries
    ] or _first([(plugin, entries) for plugin, entries in given if name in entries], name)


def find(kind: Kind, name: str) -> Any:
    """Return the part called `name` or `package:name`.

    The package is the distribution of the plugin, or the name of its entry point.
    """
    owners = _owners(kind, name)
    if len(owners) > 1:
        having = [plugin for plugin, _ in owners]
        packages = " and ".join(sorted({plugin.package for plugin in having}))
        choices = " or ".join(f"{label}:{name}" for label in _labels(having))
        raise CwmError(f"{packages} both provide the {kind} {name!r}: write {choices}")
    if not owners:
        known = (n for _, entries in provided(kind) for n in entries)
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
    if base is not None and isinstance(found, type) and not issubclass(found, base):
        raise CwmError(
            f"the {kind} {name!r} of {plugin.package} is invalid: it must be a subclass of "
            f"{base.__module__}.{base.__name__}"
        )
    for argument in extension_points()[kind].arguments:
        if argument not in inspect.signature(found).parameters:
            raise CwmError(
                f"the {kind} {name!r} of {plugin.package} is invalid: the class "
                f"{found.__name__} needs a field {argument!r}"
            )
    return found


@cache
def _log_owner(kind: Kind, name: str, owner: str) -> None:
    """Log whose something is, once: it may be looked up often."""
    log.debug("the %s %r is provided by %s", kind, name, owner)


def base_of(kind: Kind) -> type | None:
    """Return the base class of a kind, None of environments: those are functions."""
    base: type | None = _resolve(extension_points()[kind].base)
    return base


def environment(name: str) -> "EnvironmentSpec":
    """Return the environment called `name`; its `make` takes `shift`, `hide` and `noise`, too."""
    spec = find("environment", name)()
    from cwm_cli.envs.checking import with_checks  # imports gymnasium, as the plugins do

    return with_checks(with_variants(spec))


def default(role: Role) -> str:
    """Return the name that stands where the user names nothing."""
    check_hooks()
    for plugin in plugins().loaded:
        hook = getattr(plugin.module, "cwm_defaults", None)
        if hook is not None and role in (chosen := hook()):
            name: str = chosen[role]
            return name
    raise CwmError(f"no plugin defines a default {role}: choose one")


class Option(NamedTuple):
    """One key that `-o` takes: its type, what it is when nobody sets it, and what it means."""

    name: str
    type: str
    default: Any
    meaning: str


class Owner(NamedTuple):
    """Something with options: what it is called in `-o strategy.KEY=VALUE`, and its dataclass.

    Its options are the fields that have a default, except `model`, which has
    a flag of its own, and those with the metadata `{"option": False}`.
    """

    label: str
    factory: Any

    @property
    def options(self) -> "dict[str, Field[Any]]":
        """The fields that a user may set."""
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

    def identity(self, made: Any) -> dict[str, Any]:
        """Return the options that tell one run from another; metadata may exempt a field."""
        chosen = {n: f for n, f in self.options.items() if f.metadata.get("identity", True)}
        return {name: getattr(made, name) for name in chosen}

    def defaults(self) -> dict[str, Any]:
        """Return what the options are when nobody sets them; the usual preset may give some."""
        values = {
            name: field.default if field.default_factory is MISSING else field.default_factory()
            for name, field in self.options.items()
        }
        return values | preset_values(self.factory, str(values.get("preset")))

    def described(self) -> list[Option]:
        """Return every option with its meaning, which is the docstring under the field.

        That of a preset names the values that it gives.
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
    """Return the docstring under each field of a class and of its bases, in one line."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):
            continue  # built in, or typed at a prompt
        body = ast.parse(source).body[0]
        lines = body.body if isinstance(body, ast.ClassDef) else []
        for line, below in pairwise(lines):
            match line, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(words))),
                ):
                    found[name] = " ".join(words.split())
    return found


def read_options(
    given: Sequence[str] | Mapping[str, Any], owners: list[Owner]
) -> dict[str, dict[str, Any]]:
    """Give each `[OWNER.]KEY=VALUE` to the owner that has the option, read as its type.

    In Python the options may come as a mapping from `[OWNER.]KEY` to values.
    """
    pairs = list(given.items()) if isinstance(given, Mapping) else [_pair(text) for text in given]
    values: dict[str, dict[str, Any]] = {owner.label: {} for owner in owners}
    for key, value in pairs:
        owner, name = _owner(key, owners)
        values[owner.label][name] = _read(owner, name, value)
    return values


def with_presets(
    chosen: Mapping[str, Mapping[str, Any]], owners: list[Owner]
) -> dict[str, dict[str, Any]]:
    """Add what presets ask of other owners that have such an option, where nobody chose it."""
    values = {label: dict(options) for label, options in chosen.items()}
    others = {owner.label: owner for owner in owners}
    for owner in owners:
        preset = values[owner.label].get("preset", owner.defaults().get("preset"))
        for (label, name), value in asked_of_others(owner.factory, str(preset)).items():
            if label in others and name in others[label].options:
                values[label].setdefault(name, value)
    return values


def _pair(text: str) -> tuple[str, str]:
    """Cut `KEY=VALUE` in two."""
    key, separator, value = text.partition("=")
    if not separator:
        raise CwmError(f"the option {text!r} has no value: write -o {key}=VALUE")
    return key, value


def _owner(key: str, owners: list[Owner]) -> tuple[Owner, str]:
    """Find whom an option belongs to."""
    label, dot, name = key.rpartition(".")
    having = [owner for owner in owners if name in owner.options and label in ("", owner.label)]
    if len(having) == 1:
        return having[0], name
    if having:
        choices = " or ".join(f"-o {owner.label}.{name}=" for owner in having)
        raise CwmError(f"the option {name!r} is ambiguous: write {choices}")
    known = [f"{owner.label}.{n}" if dot else n for owner in owners for n in owner.options]
    raise UnknownNameError("option", key, known)


def _read(owner: Owner, name: str, value: Any) -> Any:
    """Read an option as the type of its field; what has no type of its own as a literal."""
    from pydantic import TypeAdapter, ValidationError

    hint = get_type_hints(owner.factory, include_extras=True)[name]
    try:
        return TypeAdapter(hint).validate_python(_typed(hint, value))
    except ValidationError as error:
        wanted = wanted_instead(error.errors()[0], _type_words(hint))
        raise CwmError(f"invalid option {name}={value}: {wanted}") from error
    except ValueError as error:
        quoted = shlex.quote(f"{name}={json.dumps(value, ensure_ascii=False)}")
        raise CwmError(f"{error}: write text in quotes, -o {quoted}") from error


def _typed(hint: Any, value: Any) -> Any:
    """Read what was typed as a literal, but for text, paths and words that can be chosen."""
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
        read = read_value(value)
    except ValueError:
        if kinds & {bool, int, float}:
            return value  # such as yes, or wrong: pydantic knows
        raise
    return value if isinstance(read, bool) and kinds & {int, float} else read


def _type_words(hint: Any) -> str:
    """Write a type as `-o` takes its values."""
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


def _labels(having: Sequence[Plugin]) -> list[str]:
    """Tell plugins apart: by package where that does, else by the name of the entry point."""
    packages = [plugin.package.split()[0] for plugin in having]
    unique = len(set(packages)) == len(packages)
    return sorted(packages if unique else [plugin.name for plugin in having])


def _resolve(entry: Any) -> Any:
    """Import what a plugin gave by its address, `module:name`."""
    if not isinstance(entry, str):
        return entry
    module, _, name = entry.partition(":")
    return getattr(import_module(module), name)


def _package(entry: EntryPoint) -> str:
    """Name the distribution of an entry point."""
    return _named(entry.dist) if entry.dist else "unknown package"


@cache
def core_package() -> str:
    """Return the name and version of the distribution of `cwm`."""
    return _named(distribution("cwm-cli"))


@cache
def _named(distribution: Distribution) -> str:
    """Name a distribution with its version; each of the two parses all of its metadata."""
    return f"{distribution.name} {distribution.version}"
