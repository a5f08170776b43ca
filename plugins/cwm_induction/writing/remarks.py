"""Remarks in the docstring of a program's class."""

import ast
import re
import textwrap

WIDTH = 92
_REMARK = re.compile(r'\n\n    It predicts .*?\n    """', re.DOTALL)


def remarked(program: str, remark: str) -> str:
    """Add a paragraph to the docstring of the first class of a program."""
    tree = ast.parse(program)
    owner = next(node for node in tree.body if isinstance(node, ast.ClassDef))
    docstring = owner.body[0]
    if not (isinstance(docstring, ast.Expr) and isinstance(docstring.value, ast.Constant)):
        return program
    lines = program.splitlines(keepends=True)
    start, end = docstring.lineno - 1, docstring.end_lineno or docstring.lineno
    text = "".join(lines[start:end]).rstrip()
    body = text.removesuffix('"""').rstrip()
    paragraph = textwrap.indent(textwrap.fill(remark, WIDTH), "    ")
    lines[start:end] = [f'{body}\n\n{paragraph}\n    """\n']
    return "".join(lines)


def unremarked(program: str) -> str:
    """Undo `remarked`, but for where the docstring ends."""
    return _REMARK.sub('\n    """', program, count=1)
