"""Damaged files of many kinds, and observed readers of these files.

A mutation is a function of a random generator and the content or the path of a file. Mutations are
drawn from a seed, so that every failure can be repeated.
"""

import json
import os
import pickle
import random
import re
import resource
import shutil
import signal
import struct
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.errors import CwmError

SECONDS, MEGABYTES = 10, 500
"""Limits of a reader for any damaged file."""

WAITING = 6
"""How many times as long one waits for a reader that waits itself, or for other processes."""

ENOUGH = 3 << 30
"""Address space of a reading process: more than its limit, so that excesses are visible."""

Mutation = Callable[[random.Random, bytes], bytes]

NUMBERS = (b"0", b"-1", b"1e999", b"NaN", b"2147483648", b"18446744073709551616", b"9" * 40)


def flip(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8, 64)) if data else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def splice(rng: random.Random, data: bytes) -> bytes:
    a, b, c = (rng.randrange(len(data) + 1) for _ in range(3))
    return data[:c] + data[min(a, b) : max(a, b)][:4096] + data[c + rng.choice((0, 16)) :]


def leave_out(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.choice((1, 7, 64, 1024)) :]


def strew(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data) + 1)
    made = rng.choice((rng.randbytes(rng.randrange(200)), b"\0" * 300, b"[" * 5000, b"\n", b"\xff"))
    return data[:start] + made + data[start + rng.choice((0, len(made))) :]


def renumber(rng: random.Random, data: bytes) -> bytes:
    """Change a number that is written in digits."""
    places = [match.span() for match in re.finditer(rb"-?\d[\d.]*", data)]
    if not places:
        return flip(rng, data)
    start, end = rng.choice(places)
    return data[:start] + rng.choice(NUMBERS) + data[end:]


def other(rng: random.Random, data: bytes) -> bytes:
    """Put something else in its place."""
    return rng.choice(
        (b"", b"\n", b"null", b"PK\3\4", b"\x80\4.", b"\xef\xbb\xbf" + data, data * 3)
    )


BYTES: tuple[Mutation, ...] = (flip, cut, splice, leave_out, strew, renumber, other)


def _strange(rng: random.Random) -> Any:
    """Return a value that nobody expects."""
    deep: Any = []
    for _ in range(rng.choice((10, 100, 900))):
        deep = [deep] if rng.random() < 0.5 else {"a": deep}
    makers: tuple[Callable[[], Any], ...] = (
        lambda: None,
        lambda: True,
        lambda: rng.choice((0, -1, 1, 3, 10**6, 2**31, 2**63, 10**30, -(10**400))),
        lambda: rng.choice((0.5, 1e308, -1e308, float("nan"), float("inf"))),
        lambda: rng.choice(("", "x", "\0", "../..", "\ud800", "NaN", "\x1b[31m", "/dev/zero")),
        lambda: "é" * 100_000,
        lambda: [],
        lambda: {},
        lambda: [[]] * 20_000,
        lambda: list(range(20_000)),
        lambda: {str(n): n for n in range(5_000)},
        lambda: deep,
    )
    return rng.choice(makers)()


def swap_value(rng: random.Random, value: Any) -> Any:
    """Change a value somewhere within others: swap it, drop it, or add one."""
    if isinstance(value, dict | list) and value and rng.random() < 0.9:
        changed: Any = dict(value) if isinstance(value, dict) else list(value)
        key: Any = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        match rng.random():
            case r if r < 0.08:
                del changed[key]
            case r if r < 0.12 and isinstance(changed, dict):
                changed["stranger"] = _strange(rng)
            case _:
                changed[key] = swap_value(rng, value[key])
        return changed
    return _strange(rng)


def swap(rng: random.Random, data: bytes) -> bytes:
    """Change a value of a JSON document."""
    return json.dumps(swap_value(rng, json.loads(data))).encode("utf-8", "surrogatepass")


def lines(rng: random.Random, data: bytes) -> bytes:
    """Garble, swap, drop or double lines of a journal, or change a value in one."""
    parts = data.split(b"\n")
    for _ in range(rng.choice((1, 1, 3))):
        place = rng.randrange(max(1, len(parts) - 1))
        match rng.randrange(6):
            case 0:
                parts[place] = rng.randbytes(rng.randrange(80)).replace(b"\n", b"")
            case 1:
                parts.insert(rng.randrange(len(parts)), parts[place])
            case 2:
                rng.shuffle(parts)
            case 3:
                del parts[place]
            case _:
                with suppress(ValueError):
                    parts[place] = swap(rng, parts[place])
    return b"\n".join(parts)


def members(data: bytes) -> dict[str, bytes]:
    """Return the members of an archive."""
    with zipfile.ZipFile(BytesIO(data)) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def _zipped(parts: Iterable[tuple[str, bytes]], kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, content in parts:
            archive.writestr(name, content)
    return file.getvalue()


def _npy(array: Any, **head: Any) -> bytes:
    """Write an array with a header that contradicts it."""
    file = BytesIO()
    np.lib.format.write_array(file, np.asarray(array), allow_pickle=True)
    content = file.getvalue()
    if not head:
        return content
    length = int.from_bytes(content[8:10], "little")
    old = content[10 : 10 + length].decode()
    said = eval(old) | head  # numpy wrote it
    text = f"{said!r}\n".encode()
    return content[:8] + struct.pack("<H", len(text)) + text + content[10 + length :]


def archive(rng: random.Random, data: bytes) -> bytes:
    """Change the members and the structure of an archive of arrays."""
    parts = members(data)
    name = rng.choice(list(parts))
    content = parts[name]
    huge = rng.choice((10**9, 2**31, 2**63, 10**30))
    heads: tuple[dict[str, Any], ...] = (
        {"shape": (huge,)},
        {"shape": (0, huge)},
        {"shape": (-1,)},
        {"shape": (1,) * rng.choice((33, 65))},
        {"shape": "x"},
        {
            "descr": rng.choice(
                ("|O", "<f2", "<c16", "<M8[s]", "<U0", "<U1000000", "V8", ">i8", "?")
            )
        },
        {"descr": [("a", "<f8")] * 3},
        {"descr": 3},
        {"fortran_order": rng.choice((True, "yes"))},
        {"stranger": 1},
    )
    with suppress(ValueError):
        array = np.load(BytesIO(content), allow_pickle=False)
        choices: tuple[Callable[[], bytes], ...] = (
            lambda: _npy(array, **rng.choice(heads)),
            lambda: _npy(array, **rng.choice(heads)),
            lambda: _npy(array, **rng.choice(heads)),
            lambda: _npy(array.reshape(-1)[: array.size // 2]),
            lambda: _npy(np.resize(array, (2, *array.shape))),
            lambda: _npy(array.astype(rng.choice(("U", "O", "f4", "c16", "i8")))),
            lambda: _npy(np.zeros(10**7 if rng.random() < 0.05 else 10**5)),
            lambda: rng.choice(BYTES)(rng, content),
            lambda: b"not an array",
        )
        content = rng.choice(choices)()
        if name == "metadata.npy" and rng.random() < 0.8:
            told = swap(rng, str(array).encode()).decode()
            content = _npy(np.array(told))
    match rng.randrange(10):
        case 0:
            del parts[name]
        case 1:
            parts[rng.choice(("x.npy", "x.txt", "../x.npy", "metadata", "é.npy"))] = content
        case 2:
            return _zipped([*parts.items(), (name, content)])
        case _:
            parts[name] = content
    kinds = (zipfile.ZIP_DEFLATED,) * 5 + (zipfile.ZIP_STORED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2)
    return _zipped(parts.items(), rng.choice(kinds))


def structure(rng: random.Random, data: bytes) -> bytes:
    """Change a number in the structure of a zip archive."""
    marks = [m.start() for m in re.finditer(rb"PK(\1\2|\3\4|\5\6|\7\x08)", data)]
    start = rng.choice(marks)
    place = start + rng.randrange(4, 46)
    size = rng.choice((1, 2, 4, 8))
    value = rng.choice((b"\xff" * size, b"\0" * size, rng.randbytes(size)))
    return data[:place] + value + data[place + size :]


def opcodes(rng: random.Random, data: bytes) -> bytes:
    """Put in operations of pickles: doublings, huge sizes, marks, memories."""
    doubled = b")" + b"".join(b"q%ch%c\x86" % (n, n) for n in range(rng.choice((30, 100))))
    made = (
        doubled,
        b"(" * 3000,
        b"]" * 3000,
        b"\x8b" + struct.pack("<i", 2**31 - 1),
        b"\x8e" + struct.pack("<Q", 2**62),
        b"\x8d" + struct.pack("<Q", 2**40),
        b"X" + struct.pack("<I", 2**32 - 1),
        b"I" + b"9" * 20_000 + b"\n",
        b"L" + b"9" * 20_000 + b"L\n",
        b"2" * 100,
        b"0",
        b"\x85" * 500,
        b"h\0" * 2000,
        b"cnumpy\nndarray\n",
        b"\x94\x94",
        b"(lp0\n" + b"g0\na" * 10,
    )
    places = [match.start() for match in re.finditer(rb"[\x94q]", data)] or [0]
    start = rng.choice(places) + 1
    return data[:start] + rng.choice(made) + data[start + rng.choice((0, 0, 1, 2)) :]


NESTED = ("(" * 5000, "[" * 300 + "]" * 300, "-" * 9000 + "1", "x = " + "1 + " * 9000 + "1\n")


def code(rng: random.Random, data: bytes) -> bytes:
    """Put strange text into a program."""
    strange = (
        *NESTED,
        "\0",
        "\ufeff",
        "\u202e",
        "class Environment: pass\n" * 50,
        "\\",
        '"""',
        "\t",
    )
    start = rng.randrange(len(data) + 1)
    encodings = ("utf-8", "utf-8", "utf-8", "utf-16", "latin-1")
    text = data[:start] + rng.choice(strange).encode() + data[start:]
    return text.decode("utf-8", "replace").encode(rng.choice(encodings), "replace")


def no_file(rng: random.Random, file: Path) -> None:
    """Put something in the place of a file that is none, or none that ends."""
    makers: tuple[Callable[[], object], ...] = (
        file.mkdir,
        lambda: os.mkfifo(file),
        lambda: file.symlink_to("/dev/zero"),
        lambda: file.symlink_to("/dev/full"),
        lambda: file.symlink_to(file.name),
        lambda: file.symlink_to("nowhere"),
        lambda: file.symlink_to("."),
        lambda: None,
        lambda: os.truncate(_touched(file), rng.choice((1 << 25, 1 << 32, 1 << 40))),
    )
    rng.choice(makers)()


def _touched(file: Path) -> Path:
    file.touch()
    return file


def spoil(rng: random.Random, file: Path, mutations: tuple[Mutation, ...]) -> str:
    """Damage a file, and return the kind of damage."""
    content = file.read_bytes()
    if rng.random() < 0.03:
        file.unlink()
        no_file(rng, file)
        return "no file"
    mutation = rng.choice(mutations)
    try:
        spoiled = mutation(rng, content)
    except Exception:  # noqa: BLE001  # the mutation does not suit the file
        mutation, spoiled = flip, flip(rng, content)
    file.write_bytes(spoiled)
    return mutation.__name__


class Case(NamedTuple):
    """The result for a damaged file: the damage, the ending, and the costs of reading it."""

    seed: int
    way: str
    ending: str
    seconds: float
    megabytes: float
    said: str


class Figures(NamedTuple):
    """The results for many damaged files."""

    cases: list[Case]

    @property
    def wrong(self) -> list[Case]:
        return [case for case in self.cases if case.ending not in ("read", "refused")]

    def __str__(self) -> str:
        endings = Counter(case.ending for case in self.cases)
        slowest = max(self.cases, key=lambda case: case.seconds)
        largest = max(self.cases, key=lambda case: case.megabytes)
        return (
            f"{len(self.cases)} tried, {dict(endings)}, slowest {slowest.seconds:.2f} s "
            f"({slowest.way}), largest {largest.megabytes:.0f} MB ({largest.way})"
        )


def fuzz(
    folder: Path,
    spoil: Callable[[random.Random, Path], tuple[str, Path]],
    read: Callable[[Path, Path], object],
    *,
    seeds: Iterable[int],
    processes: int = 2,
) -> Figures:
    """Spoil a file in copies of a folder and read it, in processes with little time and memory."""
    seeds = list(seeds)
    children = []
    for number in range(processes):
        theirs = folder.with_name(f"{folder.name}-{os.getpid()}-{number}")
        result = theirs.with_suffix(".cases")
        if (pid := os.fork()) == 0:
            try:
                most = _mapped() + ENOUGH
                resource.setrlimit(resource.RLIMIT_AS, (most, most))
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                with result.open("wb", buffering=0) as out:
                    for seed in seeds[number::processes]:
                        case = _tried(folder, theirs, spoil, read, seed)
                        out.write(pickle.dumps(case))
            finally:
                os._exit(0)
        children.append((pid, theirs, result))
    cases: list[Case] = []
    for pid, theirs, result in children:
        os.waitpid(pid, 0)
        with result.open("rb") as lines, suppress(EOFError):
            while True:
                cases.append(pickle.load(lines))
        shutil.rmtree(theirs, ignore_errors=True)
        result.unlink()
    for seed in {*seeds} - {case.seed for case in cases}:
        cases.append(Case(seed, "", "the process ended", 0.0, 0.0, ""))
    return Figures(cases)


def _mapped() -> int:
    """Return how much memory this process has mapped, by libraries that other tests imported."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _tried(
    folder: Path,
    theirs: Path,
    spoil: Callable[[random.Random, Path], tuple[str, Path]],
    read: Callable[[Path, Path], object],
    seed: int,
) -> Case:
    """Spoil a copy of a folder and read it."""
    shutil.rmtree(theirs, ignore_errors=True)
    shutil.copytree(folder, theirs)
    way, file = spoil(random.Random(seed), theirs)
    before = _peak(reset=True)
    with _limited():
        started, ending, said = time.process_time(), "read", ""
        try:
            read(theirs, file)
        except CwmError as error:
            said = str(error)
            cause: BaseException | None = error
            while cause := cause.__cause__ if cause else None:
                if isinstance(cause, MemoryError):
                    ending, said = "no memory", traceback.format_exc(limit=-3)
            ending = "refused" if ending == "read" and "\n" not in said else ending
            ending = "several lines" if ending == "read" else ending
        except _TooLongError:
            ending, said = "hang", traceback.format_exc(limit=-6)
        except BaseException:  # noqa: BLE001
            ending, said = "traceback", traceback.format_exc(limit=-6)
        seconds = time.process_time() - started
    megabytes = (_peak() - before) / 1024
    if ending in ("read", "refused") and megabytes > MEGABYTES:
        ending = "much memory"
    return Case(seed, way, ending, seconds, megabytes, said)


class _TooLongError(BaseException):
    """A reader took too long."""


@contextmanager
def _limited() -> Iterator[None]:
    """Break off what takes too long."""

    def stop(*_: object) -> None:
        raise _TooLongError

    signal.signal(signal.SIGPROF, stop)
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.alarm(WAITING * SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)


def _peak(*, reset: bool = False) -> int:
    """Return the most memory that this process has had since it was reset, in kilobytes."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])
