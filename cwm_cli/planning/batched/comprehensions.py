"""Comprehensions of a program: loops over what has the same length in all lanes."""

import ast

from cwm_cli.planning.batched import calls
from cwm_cli.planning.batched.analysis import bound
from cwm_cli.planning.batched.frame import call, cannot
from cwm_cli.planning.batched.writing import Writer


def write_comprehension(
    write: Writer, node: ast.ListComp | ast.GeneratorExp | ast.DictComp
) -> ast.expr:
    """Write a comprehension; that of a generator becomes a list."""
    generators = [part for generator in node.generators for part in _loops(write, generator)]
    variables = write.frame.loop_variables
    before = len(variables)
    variables += [name for generator in node.generators for name in bound(generator.target)]
    try:
        if isinstance(node, ast.DictComp):
            return ast.DictComp(write(node.key), write(node.value), generators)
        return ast.ListComp(write(node.elt), generators)
    finally:
        del variables[before:]


def _loops(write: Writer, node: ast.comprehension) -> list[ast.comprehension]:
    """Write one `for` of a comprehension, and one more where it unpacks."""
    if node.is_async:
        cannot(node.target, "an asynchronous loop")
    over = write.iterated(node.iter)
    write.frame.loop_variables += bound(node.target)
    tests = [call(write.runtime(calls.uniform), write.truth(test)) for test in node.ifs]
    if isinstance(node.target, ast.Name):
        return [ast.comprehension(node.target, over, list(tests), 0)]
    if not isinstance(node.target, ast.Tuple | ast.List):
        cannot(node.target, "a loop that assigns to an element")
    name = write.frame.new("t")
    first = ast.comprehension(ast.Name(name, ast.Store()), over, [], 0)
    if not all(isinstance(part, ast.Name) for part in node.target.elts):
        cannot(node.target, "nested targets in a comprehension")
    parts = write.unpacked(ast.Name(name, ast.Load()), len(node.target.elts))
    return [first, ast.comprehension(node.target, ast.List([parts], ast.Load()), list(tests), 0)]
