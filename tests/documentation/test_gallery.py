import re

import pytest

import cwm_cli as cwm
from benchmarks.documentation.pages import Page
from benchmarks.gallery import ENTRIES, FILMS, MAX_FILM_BYTES, PAGE, replace_parts

PAGE_OF_PROGRAMS = Page.read(PAGE)
PROGRAMS = {
    block.attributes["file"].removesuffix(".py"): block.text
    for block in PAGE_OF_PROGRAMS.blocks()
    if "file" in block.attributes
}
SHOWN = [entry for entry in ENTRIES if entry.name in PROGRAMS]
QUICK = {"cliff-walking", "pendulum", "lava-gap"}
"""Three families; the other programs are tested in CI."""


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(entry, marks=() if entry.name in QUICK else pytest.mark.slow, id=entry.name)
        for entry in SHOWN
    ],
)
def test_program_of_the_gallery_is_exact_on_new_transitions(entry, tmp_path):
    data = cwm.collect(
        entry.env,
        env_args=entry.env_args,
        policy="random",
        episodes=1,
        test_episodes=4,
        max_steps=30,
        min_rows=1,
        seed=1234,
        out=tmp_path / "new.npz",
    )
    result = cwm.evaluate(
        PROGRAMS[entry.name],
        env=entry.env,
        env_args=entry.env_args,
        dataset=data.file,
        split="test",
    )
    score = result.scores.test
    assert result.failure is None
    assert score.transitions >= 20
    assert not score.refuted
    assert score.skill is None or score.skill > 0.9


def test_gallery_has_a_section_and_a_small_film_of_every_program():
    headings = re.findall(r"^## (.+)$", PAGE_OF_PROGRAMS.text, re.MULTILINE)
    assert headings == [*(entry.title for entry in SHOWN), "Nearly solved"]
    assert len(SHOWN) == 10
    films = {f"{entry.name}.gif" for entry in SHOWN if entry.has_film}
    assert {film.name for film in FILMS.iterdir()} == films
    assert all(film.stat().st_size <= MAX_FILM_BYTES for film in FILMS.iterdir())


def test_gallery_shows_the_commands_that_made_each_program():
    commands = {
        line
        for block in PAGE_OF_PROGRAMS.blocks()
        if block.language == "sh"
        for line in block.commands
    }
    assert commands == {command for entry in SHOWN for command in entry.commands()}


def test_new_results_replace_only_their_parts_of_the_page():
    page = "a\n<!-- table -->\nold\n<!-- end -->\nb\n<!-- nearly -->\n<!-- end -->\nc\n"
    new = "a\n<!-- table -->\n\nT\n\n<!-- end -->\nb\n<!-- nearly -->\n\nN\n\n<!-- end -->\nc\n"
    assert replace_parts(page, {"table": "T", "nearly": "N"}) == new
    assert replace_parts(new, {"table": "T", "nearly": "N"}) == new
