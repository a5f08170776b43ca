"""What the data say reaches whoever writes a program: chosen rows, counts, what was not seen."""

from cwm_cli.problems.feedback.description import needed, passages
from cwm_cli.registry import environment


def described(env: str, **arguments: object) -> str:
    """Return the description that prompts have of an environment."""
    spec = environment(env)
    made = spec.make(**arguments)
    try:
        return spec.describe(made)
    finally:
        made.close()


def test_a_description_keeps_its_rules_and_loses_what_no_program_needs() -> None:
    """Rewards, ends, names and the bounds in the spaces stay; drawn starts and the like go."""
    whole = described("CartPole-v1")
    short = needed(whole)
    assert "uniformly random" in whole and "uniformly random" not in short
    for fact in ("fixed force", "Pole Angular Velocity", "±12°", "+1", "## Spaces"):
        assert (fact in short) == (fact in whole), fact
    assert needed(short) == short
    assert "state `[36]`" in needed(described("CliffWalking-v1"))
    lake = needed(described("FrozenLake-v1"))
    assert "P(move left)=1/3" in lake and "SFFF" in lake


def test_options_that_are_off_are_named_and_those_that_are_explained_elsewhere_are_not() -> None:
    """The defaults of options that no passage explains stay."""
    text = (
        "## Rewards\nMinus `weight` (1) per step.\n\n"
        "## Arguments\nIt has options.\n\n"
        "| Name | Default |\n| --- | --- |\n"
        "| `weight` | 1 (see `Rewards` section) |\n"
        "| `wind` | 0.3, always from the left |\n\n"
        "## References\nA book.\n\n"
        "## Spaces\nObservation: an integer"
    )
    short = needed(text)
    assert "| `wind` | 0.3, always from the left |" in short
    assert "see `Rewards`" not in short and "A book" not in short and "options." not in short
    off = text.replace("It has options.", "`rain=False`: if True it rains, at random.\n")
    assert "`rain=False`" in needed(off) and "it rains" not in needed(off)
    on = off + "\n\nThe environment was made with `rain=True`."
    assert "it rains" in needed(on)


def test_passages_say_what_they_are_about_and_hold_the_whole_description() -> None:
    """A heading that says nothing belongs to what stands above it."""
    text = "A lake.\n\n## Episode End\n\n### Causes\nA hole.\n\n## Reward\nOne."
    assert [part.about for part in passages(text)] == ["task", "ends", "ends", "reward"]
    assert "".join("".join(map(str, passages(text))).split()) == "".join(text.split())
