"""Find plugins and look up what they provide."""

from collections.abc import Iterator, Mapping
from dataclasses import Field, fields
from functools import cache
from importlib import import_module
from importlib.metadata import Distribution, EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_type_hints

import pluggy

from cwm_cli.errors import CwmError, UnknownNameError
from cwm_cli.hookspecs import Hooks

if TYPE_CHECKING:
    from cwm_cli.envs.spec import EnvironmentSpec

Kind = Literal["environment", "backend", "strategy"]
HOOKS: Mapping[Kind, str] = {
    "environment": "cwm_environments",
    "backend": "cwm_backends",
    "strategy": "cwm_strategies",
}


ELSEWHERE = "run `cwm plugins` for the known ones, or write MODULE:ID if a module registers it"


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


@cache
def plugins() -> Plugins:
    """Load every installed plugin once; one that fails to import is left out with a warning."""
    manager = pluggy.PluginManager("cwm")
    manager.add_hookspecs(Hooks)
    loaded, warnings = [], []
    for entry in sorted(entry_points(group="cwm"), key=lambda entry: entry.name):
        try:
            module = entry.load()
        except Exception as error:  # noqa: BLE001  # whatever a stranger's import may raise
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            warnings.append(f"the plugin {entry.name!r} ({_package(entry)}) is left out: {reason}")
            continue
        manager.register(module, name=f"{entry.name} of {_package(entry)}")
        loaded.append(Plugin(entry.name, _package(entry), module))
    return Plugins(manager, tuple(loaded), tuple(warnings))


@cache
def check_hooks() -> None:
    """Refuse a plugin whose hook is misspelt; checked when plugins are first used."""
    try:
        plugins().manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise CwmError(f"a plugin is at fault: {' '.join(str(error).split())}") from error


def provided(kind: Kind) -> Iterator[tuple[Plugin, Mapping[str, Any]]]:
    """Yield what each plugin provides of one kind."""
    check_hooks()
    for plugin in plugins().loaded:
        hook = getattr(plugin.module, HOOKS[kind], None)
        if hook is not None:
            yield plugin, hook()


def find(kind: Kind, name: str) -> Any:
    """Return what a plugin provides under `name`, or say which names are known."""
    owners = [(plugin, entries) for plugin, entries in provided(kind) if name in entries]
    if len(owners) > 1:
        packages = " and ".join(sorted(plugin.package for plugin, _ in owners))
        raise CwmError(f"{packages} both provide the {kind} {name!r}: uninstall one of them")
    if not owners:
        known = (n for _, entries in provided(kind) for n in entries)
        raise UnknownNameError(kind, name, known, ELSEWHERE if kind == "environment" else "")
    plugin, entries = owners[0]
    try:
        return _resolve(entries[name])
    except (ImportError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise CwmError(
            f"the {kind} {name!r} of {plugin.package} cannot be loaded ({reason}): reinstall it"
        ) from error


def environment(name: str) -> "EnvironmentSpec":
    """Return the environment called `name`."""
    spec: EnvironmentSpec = find("environment", name)()
    return spec


class Owner(NamedTuple):
    """Something with options: what it is called in `-o strategy.KEY=VALUE`, and its dataclass.

    `names` restricts the options to some of the fields.
    """

    label: str
    factory: Any
    names: tuple[str, ...] | None = None

    @property
    def options(self) -> dict[str, "Field[Any]"]:
        """The fields that a user may set."""
        own = {field.name: field for field in fields(self.factory) if field.init}
        names = own.keys() - {"model"} if self.names is None else self.names
        return {name: field for name, field in own.items() if name in names}

    def identity(self, made: Any) -> dict[str, Any]:
        """Return the options that tell one run from another; metadata may exempt a field."""
        chosen = {n: f for n, f in self.options.items() if f.metadata.get("identity", True)}
        return {name: getattr(made, name) for name in chosen}

    def defaults(self) -> dict[str, Any]:
        """Return what the options are when nobody sets them."""
        return {name: field.default for name, field in self.options.items()}


def read_options(pairs: list[str], owners: list[Owner]) -> dict[str, dict[str, Any]]:
    """Give each `[OWNER.]KEY=VALUE` to the owner that has the option, read as its type."""
    values: dict[str, dict[str, Any]] = {owner.label: {} for owner in owners}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator:
            raise CwmError(f"the option {pair!r} has no value: write -o {key}=VALUE")
        owner, name = _owner(key, owners)
        values[owner.label][name] = _read(owner, name, text)
    return values


def _owner(key: str, owners: list[Owner]) -> tuple[Owner, str]:
    """Find whom an option belongs to."""
    label, dot, name = key.rpartition(".")
    having = [owner for owner in owners if name in owner.options and label in ("", owner.label)]
    if len(having) == 1:
        return having[0], name
    if having:
        choices = " or ".join(f"-o {owner.label}.{name}=" for owner in having)
        raise CwmError(f"the option {name!r} could mean several things: write {choices}")
    known = [f"{owner.label}.{n}" if dot else n for owner in owners for n in owner.options]
    raise UnknownNameError("option", key, known)


def _read(owner: Owner, name: str, text: str) -> Any:
    """Read the text of an option as the type of its field."""
    from pydantic import TypeAdapter, ValidationError

    hint = get_type_hints(owner.factory, include_extras=True)[name]
    try:
        return TypeAdapter(hint).validate_python(text)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise CwmError(f"the option {name}={text} is refused: {reason.lower()}") from error


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
def _named(distribution: Distribution) -> str:
    """Name a distribution with its version; each of the two parses all of its metadata."""
    return f"{distribution.name} {distribution.version}"
