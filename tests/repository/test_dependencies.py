"""Dependencies have upper bounds, and the committed set of versions is within them."""

import tomllib

from packaging.requirements import Requirement

from folders import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirements():
    """Return the direct dependencies of the package and of all extras."""
    extras = PROJECT["optional-dependencies"].values()
    texts = [*PROJECT["dependencies"], *(text for extra in extras for text in extra)]
    return [each for each in map(Requirement, texts) if each.name != PROJECT["name"]]


def pinned():
    """Return the versions in `constraints.txt`, several if they depend on Python's version."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    versions: dict[str, list[str]] = {}
    for each in found:
        (pin,) = each.specifier
        assert pin.operator == "==", each
        versions.setdefault(each.name, []).append(pin.version)
    return versions


def test_direct_dependencies_have_lower_and_upper_bounds():
    for each in requirements():
        operators = {part.operator for part in each.specifier}
        assert {">=", "<"} <= operators, f"{each} needs both bounds"


def test_constraints_pin_each_direct_dependency_within_its_bounds():
    versions = pinned()
    for each in requirements():
        name = each.name.lower().replace("_", "-")
        assert name in versions, f"{name}: run .ci/lock"
        for version in versions[name]:
            assert each.specifier.contains(version), f"{each} excludes {version}: run .ci/lock"
