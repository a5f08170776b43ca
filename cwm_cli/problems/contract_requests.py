"""The marker of an answer that asks for programs of another contract."""

import re

from cwm_cli.evaluation.finding import USUAL_METRICS, ContractName
from cwm_cli.search.reading import without_thinking

MARKER = "CONTRACT:"
REQUEST = re.compile(
    rf"^[ \t>*_`-]*{MARKER}[ \t*_`]*({'|'.join(USUAL_METRICS)})\b", re.MULTILINE | re.IGNORECASE
)

NEEDS = {
    "plain": "if the present observation and the action decide everything",
    "chance": "if the same situation can lead to different outcomes by chance",
    "memory": "if outcomes depend on earlier steps, for example on a hidden mode, timer or counter",
}


def request_words(contract: ContractName, former: tuple[ContractName, ...] = ()) -> str:
    """Return the sentences of a prompt that explain the marker; "" if every contract was tried."""
    others = [name for name in NEEDS if name != contract and name not in former]
    if not others:
        return ""
    listed = ", or ".join(f"`{MARKER} {name}` {NEEDS[name]}" for name in others)
    return (
        "If no program of this kind can be right, write one of these lines outside the program, "
        f"and the next question asks for a program of that kind: {listed}. The answer may "
        "still hold a program of the present kind."
    )


def requested_contract(text: str) -> str:
    """Return the contract that a completion asks for in a line of its own, or "".

    The last such line counts. Lines inside a model's thoughts do not.
    """
    found = REQUEST.findall(without_thinking(text).text)
    return str(found[-1]).lower() if found else ""
