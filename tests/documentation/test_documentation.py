"""What the documentation and the README show is what happens, and nothing in them leads nowhere."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from benchmarks.documentation import reference
from benchmarks.documentation.comparing import cut, matches
from benchmarks.documentation.pages import ROOT, Block, Page, PageError, Step, pages, runs
from benchmarks.documentation.running import Session, check

PAGES = pages()
MARKS = {"quick": (), "slow": pytest.mark.slow, "long": pytest.mark.long}

HOLDS = {
    "README.md": """
assert found.solved and found.scores.test.exact == 1.0
assert played.mean > played.sides["random"].mean.mean
"""
}
"""Python expressions that must be true after all blocks of a page have run."""


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=MARKS[page.when], id=page.name) for page in PAGES]
)
def test_every_block_of_a_page_runs_and_prints_what_the_page_shows(page, tmp_path):
    with Session(page, tmp_path) as session:
        wrong = list(check(page, session))
        if page.name in HOLDS:
            session.do(Step(Block("python", {}, HOLDS[page.name], 0, (0, 0)), None))
    assert not wrong, "\n".join(wrong)


def test_few_blocks_are_not_run_and_each_says_why(capsys):
    left = [
        (f"{page.name}:{block.line}", block.attributes["no-run"])
        for page in PAGES
        for block in page.blocks()
        if "no-run" in block.attributes
    ]
    with capsys.disabled():
        sys.stdout.write("".join(f"\nnot run: {place} ({reason})" for place, reason in left))
    ran = sum(runs(block) for page in PAGES for block in page.blocks())
    assert len(left) <= ran / 3


def made(tmp_path: Path, text: str) -> Page:
    return Page(ROOT / "docs" / "made.md", text)


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("accuracy 1.000\n", "accuracy  0.999\n", True),
        ("accuracy 1.000\n", "accuracy 0.700\n", False),
        ("7 rows\n", "8 rows\n", False),
        ("took 3.2 s\n", "took 14 s\n", True),
        ("a\n...\nz\n", "a\nb\nc\nz\n", True),
        ("a\n...\nz\n", "a\nb\nc\n", False),
        ("a\n", "a\nb\n", False),
        ("run runs/X-0-20260101-101010 started\n", "run runs/X-0-20261231-235959 started\n", True),
        ("─────\na  b\n", "───────────\na      b\n", True),
    ],
)
def test_what_is_shown_is_held_against_what_is_printed(shown, printed, same):
    assert matches(shown, printed) == same


def test_long_output_is_cut_as_asked():
    assert cut("1\n2\n3\n4\n5\n", head=1, tail=2) == "1\n...\n4\n5\n"
    assert cut("1\n2\n3\n", head=2) == "1\n2\n3\n"


@pytest.mark.parametrize("label", ["", "bash", "console", "py", "sh norun", 'sh no-run=""'])
def test_a_block_that_would_escape_by_its_label_is_refused(tmp_path, label):
    with pytest.raises(PageError, match=r"made\.md:1"):
        made(tmp_path, f"```{label}\nfalse\n```\n").blocks()


def test_a_command_that_would_escape_as_a_text_is_refused(tmp_path):
    with pytest.raises(PageError, match=r"made\.md:1"):
        made(tmp_path, "```text\n$ false\n```\n").blocks()


def test_a_page_that_lies_is_caught_and_one_that_does_not_is_not(tmp_path):
    page = made(
        tmp_path,
        "```python file=half.py\ndef half(n):\n    return n / 2\n```\n"
        "```sh\nexport N=5\necho $N\n```\n```text\n5\n```\n"
        "```python\nimport half\n\nx = half.half(5)\n```\n"
        "```python\nprint(x)\n```\n```text\n3.5\n```\n"
        "```sh exit=3\n(exit 3)\n```\n",
    )
    with Session(page, tmp_path) as session:
        [wrong] = check(page, session)
    assert "line 20 shows\n3.5\n\nbut the output is\n2.5" in wrong
    failing = made(tmp_path, "```sh\nfalse\n```\n")
    with Session(failing, tmp_path) as session, pytest.raises(AssertionError, match="exit 1"):
        list(check(failing, session))


class Links(HTMLParser):
    """The links of a page of the site, and its anchors."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.targets, self.places = [], set()
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.places |= {given[name] for name in ("id", "name") if given.get(name)}
        wanted = {"a": "href", "img": "src", "link": "href", "script": "src", "source": "src"}
        if target := given.get(wanted.get(tag, "")):
            self.targets.append(target)


def dead_links(site: Path) -> list[str]:
    """Return what the pages of a built site point to that is not there."""
    read = {path: Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    dead = []
    for path, page in read.items():
        for target in page.targets:
            address = urlsplit(target)
            if address.scheme in ("http", "https", "mailto", "data"):
                continue
            there = path if not address.path else (path.parent / unquote(address.path)).resolve()
            place = unquote(address.fragment)
            if address.path.startswith("/"):
                continue  # of the 404 page, which a server sends for any address
            if not there.exists():
                dead.append(f"{path.relative_to(site)}: {target}")
            elif (
                place
                and there in read
                and place not in read[there].places | {"only-light", "only-dark"}
            ):
                dead.append(f"{path.relative_to(site)}: {target} has no such place")
    return dead


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material", reason="the extra `docs` builds the site")
    folder = tmp_path_factory.mktemp("site").resolve()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_every_link_in_it_leads_somewhere(site):
    assert dead_links(site) == []


@pytest.mark.slow
def test_pages_fetch_nothing_from_elsewhere(site):
    foreign = []
    for path in site.rglob("*.html"):
        found = Links(path.read_text(encoding="utf-8"))
        loaded = [
            t for t in found.targets if urlsplit(t).netloc and not t.startswith("https://docs")
        ]
        foreign += [f"{path.name}: {t}" for t in loaded if t.endswith((".js", ".css", ".woff2"))]
    for path in site.rglob("*.css"):
        foreign += [path.name] * path.read_text(encoding="utf-8").count("url(http")
    assert foreign == []


@pytest.mark.slow
def test_every_message_of_the_code_is_on_the_page_of_errors(site):
    class Words(HTMLParser):
        def __init__(self, html):
            super().__init__()
            self.said = []
            self.feed(html)

        def handle_data(self, data):
            self.said.append(data)

    page = (site / "reference" / "errors.html").read_text(encoding="utf-8")
    told = " ".join("".join(Words(page).said).split())
    known = {" ".join(message.words.replace("`", "").split()) for message in reference.messages()}
    assert len(known) > 300
    assert [words for words in known if words not in told and words.strip("…: ")] == []


@pytest.mark.slow
def test_no_error_for_users_escapes_the_collection_and_all_have_a_subject():
    raised = [
        (path.relative_to(ROOT).as_posix(), number)
        for root in ("cwm_cli", "plugins")
        for path in (ROOT / root).rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"raise (CwmError|UnknownNameError|UnreadableError|BusyError)\(", line)
    ]
    found = {(message.module, message.line) for message in reference.messages()}
    assert len(raised) > 300
    assert [place for place in raised if place not in found] == []
    assert {reference.subject(message) for message in reference.messages()} <= {*reference.SUBJECTS}


@pytest.mark.slow
def test_messages_that_have_a_cause_and_a_cure_by_hand_are_those_of_the_code():
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    by_hand = page.partition("## Causes and remedies")[2].partition("## All messages")[0]
    cells = re.findall(r"^\| (`.+?`+) \| ", by_hand, flags=re.MULTILINE)
    named = [cell[2:-2].strip() if cell.startswith("``") else cell[1:-1] for cell in cells]
    words = {message.words for message in reference.messages()}
    assert len(named) >= 30
    assert [name for name in named if name not in words] == []


def test_every_command_has_a_section_of_its_own():
    page = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    named = set(re.findall(r"<!-- generated: command (.+?) -->", page))
    assert named == {command.path for command in reference.all_commands()}
