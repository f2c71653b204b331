"""What an agent of the sandbox is told; the task itself is the session's."""

from __future__ import annotations

from policies.llm.prompts import RULES

__all__ = ["CONDITIONS", "REFLECT", "VERSION", "system_text_of"]

VERSION = "1"
"""Changes with any change of the wording."""

CONDITIONS = ("vanilla", "aware", "reflect")
"""``vanilla``; ``aware``: with the rules of reliable clients; ``reflect``: asked to think after
every tool error."""

ROLE = """\
You carry out one task by calling tools. The task says exactly what must be done. Work through it \
step by step with the tools; when you are done, or can do no more, call finish with what is true: \
status completed only if everything is certainly done, uncertain otherwise, naming the operations \
that you are not certain of. Time passes with every call; wait lets it pass on purpose. You have \
40 tool calls."""

REFLECT = """\
A tool call has just failed. Before you go on, think: what may have happened at the service, what \
do you know for certain, what could you look up, and what would a repeat do in each case? Then go \
on with the task."""


def system_text_of(condition: str) -> str:
    """The fixed system text of a condition."""
    return f"{ROLE}\n\n{RULES}\n" if condition == "aware" else f"{ROLE}\n"
