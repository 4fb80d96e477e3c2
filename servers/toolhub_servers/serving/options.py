"""The options of a server: validated when it is made, and what is missing is reported before a run begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class MissingOption:
    """An option that is not set although a tool needs it. The server starts all the same, and the tool says so.

    option: its name, such as `sogou.secret_id`. variable: the environment variable that configs usually take it from.
    loss: what does not work without it, as a sentence. is_needed: whether the server is of no use without it.
    tool: the only tool that needs it; empty if all tools do.
    """

    option: str
    variable: str
    loss: str
    is_needed: bool = False
    tool: str = ""


def validated(model: type[M], given: Any, name: str = "") -> M:
    """Return the validated options. Raises ValueError with a sentence for each problem, in place of pydantic's report.

    name: the option that `given` is the value of, if it is one.
    """
    try:
        return model.model_validate(given)
    except ValidationError as exc:
        problems = exc.errors(include_url=False, include_input=False)
        raise ValueError("; ".join(_sentence(problem, name) for problem in problems)) from None


def _sentence(problem: Mapping[str, Any], name: str) -> str:
    where = ".".join([*([name] if name else []), *map(str, problem["loc"])])
    return f"option {where}: {problem['msg'].removeprefix('Value error, ')}"
