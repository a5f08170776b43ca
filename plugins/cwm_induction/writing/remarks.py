"""Remarks in the docstring of a program's class."""

import ast
import re
import textwrap

WIDTH = 92
_REMARK = re.compile(r'\n\n    It predicts .*?\n    """', re.DOTALL)


def remarked(program: str, remark: str) -> str:
    """Add a paragraph to the docstring of the first class of a program, and fill long lines."""
    tree = ast.parse(program)
    owner = next(node for node in tree.body if isinstance(node, ast.ClassDef))
    docstring = owner.body[0]
    if not (isinstance(docstring, ast.Expr) and isinstance(docstring.value, ast.Constant)):
        return program
    lines = program.splitlines(keepends=True)
    start, end = docstring.lineno - 1, docstring.end_lineno or docstring.lineno
    text = "".join(lines[start:end]).rstrip()
    body = text.removesuffix('"""').rstrip()
    paragraphs = [_filled(paragraph) for paragraph in [*body.split("\n\n"), f"    {remark}"]]
    lines[start:end] = ["\n\n".join(paragraphs), '\n    """\n']
    return "".join(lines)


def _filled(paragraph: str) -> str:
    """Fill the lines of a paragraph anew if one of them is too long."""
    if max(map(len, paragraph.splitlines()), default=0) <= WIDTH + 4:
        return paragraph
    return textwrap.indent(textwrap.fill(" ".join(paragraph.split()), WIDTH), "    ")


def unremarked(program: str) -> str:
    """Undo `remarked`, but for where the docstring ends."""
    return _REMARK.sub('\n    """', program, count=1)
