"""MuJoCo bodies that a user gives to a search: MJCF files, or the model of the environment."""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from cwm_cli.data.reading import UnreadableError, read_text
from cwm_cli.data.spaces import Space
from cwm_cli.errors import CwmError

if TYPE_CHECKING:
    import gymnasium as gym

ENVIRONMENT = "env"
"""The value of `--body` for the environment's own model."""

OWN_MODEL = "the environment's own model (--body env)"
"""The origin of the environment's own body in reports."""

TOOL = "mujoco"
"""The module that programs import to simulate a body."""


@dataclass(frozen=True)
class Body:
    """A MuJoCo model.

    Attributes:
        xml: The MJCF text, which includes no other file.
        origin: The name of the file, or `OWN_MODEL`.
    """

    xml: str
    origin: str

    @property
    def digest(self) -> str:
        """A hash of the text."""
        return f"sha256:{sha256(self.xml.encode()).hexdigest()}"

    @property
    def comment(self) -> str:
        """A comment for programs that simulate the body."""
        return f"The body is {self.origin}." if self.origin == OWN_MODEL else ""

    @property
    def words(self) -> str:
        """The part of a prompt that shows the body."""
        return (
            "The body of the environment is this MuJoCo model (MJCF). The program may contain its "
            f"text and simulate it with `import mujoco`:\n\n```xml\n{self.xml.strip()}\n```"
        )

    def save(self, path: Path) -> None:
        """Write the text to a file."""
        path.write_text(self.xml, encoding="utf-8")

    def check(self, observation_space: Space, action_space: Space) -> None:
        """Check that the body fits the spaces of recorded transitions.

        Raises:
            CwmError: The spaces are no flat arrays of real numbers, the body has no joints, or the
                number of its actuators differs from the size of an action.
        """
        model = _mujoco().MjModel.from_xml_string(self.xml)
        for name, space in (("observations", observation_space), ("actions", action_space)):
            if space.kind != "box" or not space.is_float or len(space.shape) != 1:
                raise CwmError(f"--body needs {name} that are flat arrays of numbers: leave it out")
        if not model.nv:
            raise CwmError("the body has no joints: choose another --body")
        if model.nu != action_space.size:
            raise CwmError(
                f"the number of actuators of the body ({model.nu}) is not the size of an action "
                f"({action_space.size}): choose another --body"
            )


def read_body(file: Path) -> Body:
    """Read an MJCF file; files that it includes become part of the text.

    Raises:
        CwmError: The file is missing, is no valid model, or needs files of meshes or textures.
    """
    try:
        text = read_text(file)
    except UnreadableError as error:
        hint = "name an MJCF file, or env for the environment's own model"
        raise UnreadableError(file, error.reason, hint, is_missing=error.is_missing) from error
    mujoco = _mujoco()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecated attributes, which still have their effect
        try:
            spec = mujoco.MjSpec.from_file(str(file))
            spec.compile()
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise CwmError(
                f"{file} is no valid MuJoCo model ({reason}): correct it or choose another --body"
            ) from error
        for xml in (text, spec.to_xml()):
            if _compiles(xml):
                return Body(_without_looks(xml), file.name)
    raise CwmError(f"{file} needs files of meshes, height fields or textures: use other shapes")


def body_of(env: gym.Env[Any, Any], name: str) -> Body:
    """Return the MuJoCo model of an environment, also if its numbers were changed after loading.

    Raises:
        CwmError: The environment has no MuJoCo model, or the model needs other files.
    """
    inner: Any = env.unwrapped
    model, file = getattr(inner, "model", None), getattr(inner, "fullpath", None)
    if model is None or not isinstance(file, str) or not Path(file).is_file():
        raise CwmError(f"{name} has no MuJoCo model: name a file, --body FILE.xml")
    body = read_body(Path(file))
    if not _equal(_mujoco().MjModel.from_xml_string(body.xml), model):
        body = _changed(file, model)
    return Body(body.xml, OWN_MODEL)


def _changed(file: str, model: Any) -> Body:
    """Return the body of a file with the numbers of a model that was changed after loading."""
    mujoco = _mujoco()
    spec = mujoco.MjSpec.from_file(file)
    # Changed masses can only be saved in a file that states them instead of inferring them.
    spec.compiler.inertiafromgeom = int(mujoco.mjtInertiaFromGeom.mjINERTIAFROMGEOM_FALSE)
    for number, part in enumerate(spec.bodies):
        if number and model.body_mass[number]:
            part.explicitinertial, part.mass = True, model.body_mass[number]
            part.inertia, part.ipos = model.body_inertia[number], model.body_ipos[number]
            part.iquat = model.body_iquat[number]
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        spec.compile()
        saved = Path(folder) / "body.xml"
        saved.write_text(spec.to_xml(), encoding="utf-8")
        mujoco.MjModel.from_xml_path(str(saved))  # the model that the next call saves with changes
        mujoco.mj_saveLastXML(str(saved), model)
        return read_body(saved)


def _without_looks(xml: str) -> str:
    """Remove textures, materials, lights and cameras from a model, if it then behaves alike."""
    tree = ElementTree.fromstring(xml)  # noqa: S314  # MuJoCo has read it
    for parent in list(tree.iter()):
        for child in list(parent):
            if child.tag in ("texture", "material", "light", "camera", "visual", "statistic"):
                parent.remove(child)
    for part in tree.iter():
        part.attrib.pop("material", None)
    for asset in tree.findall("asset"):
        if not len(asset):
            tree.remove(asset)
    ElementTree.indent(tree)
    short = ElementTree.tostring(tree, encoding="unicode")
    read = _mujoco().MjModel.from_xml_string
    return short if _compiles(short) and _equal(read(short), read(xml)) else xml


def _compiles(xml: str) -> bool:
    try:
        _mujoco().MjModel.from_xml_string(xml)
    except ValueError:
        return False
    return True


def _equal(one: Any, other: Any) -> bool:
    """Return whether two compiled models behave alike."""
    if (one.nq, one.nv, one.nu, one.ngeom) != (other.nq, other.nv, other.nu, other.ngeom):
        return False
    names = ["body_mass", "body_inertia", "body_pos", "dof_damping", "dof_armature", "jnt_range"]
    names += ["geom_size", "geom_friction", "actuator_gear", "actuator_ctrlrange", "jnt_stiffness"]
    same = all((getattr(one, name) == getattr(other, name)).all() for name in names)
    return bool(same and (one.opt.gravity == other.opt.gravity).all()) and (
        (one.opt.timestep, int(one.opt.integrator), one.opt.density, one.opt.viscosity)
        == (other.opt.timestep, int(other.opt.integrator), other.opt.density, other.opt.viscosity)
    )


def _mujoco() -> Any:
    """Import MuJoCo, and turn off its warnings.

    Raises:
        CwmError: It is not installed.
    """
    try:
        import mujoco
    except ImportError as error:
        raise CwmError('--body needs MuJoCo: pip install -e ".[mujoco]"') from error
    mujoco.set_mju_user_warning(lambda _: None)  # otherwise warnings create MUJOCO_LOG.TXT
    return mujoco
