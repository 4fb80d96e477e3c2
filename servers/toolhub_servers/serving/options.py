"""The options of a server: from a config, from the environment, and what is missing in them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ValidationError

from toolhub.config.section import Section

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class MissingOption:
    """An option that is not set although a tool needs it. The server starts, and its tool says what is missing.

    option: its name, such as `sogou.secret_id`. variable: the environment variable that configs usually take it from.
    loss: what does not work without it, as a sentence. is_needed: the server has no use without it. tool: the only tool
    that needs it; empty if all tools do.
    """

    option: str
    variable: str
    loss: str
    is_needed: bool = False
    tool: str = ""


class ServiceSettings(Section):
    """The options of a server or a backend that uses a service on the web."""

    VARIABLES: ClassVar[Mapping[str, str]] = {}
    """The environment variable of each option that a server takes from one when it runs alone."""
    REQUIRED: ClassVar[tuple[str, ...]] = ()
    """The options without which the service cannot be used."""

    @classmethod
    def from_environment(cls) -> dict[str, str]:
        """Return the options that the environment gives. A variable that is empty counts as not set."""
        return {option: os.environ[name] for option, name in cls.VARIABLES.items() if os.environ.get(name)}

    @property
    def unset(self) -> list[str]:
        """The required options that have no value."""
        return [option for option in self.REQUIRED if not getattr(self, option)]


def missing_options_of(settings: type[Any]) -> Callable[..., list[MissingOption]]:
    """Return the function `missing_options` of a server's module, for a server whose settings know what is missing.

    The function takes the server's options. It raises ValueError for options that are wrong.
    """

    def missing_options(**options: Any) -> list[MissingOption]:
        found: list[MissingOption] = validated(settings, options).missing_options()
        return found

    return missing_options


def validated(model: type[M], given: Any, name: str = "") -> M:
    """Return the validated options. Raises ValueError with a sentence for each problem, in place of pydantic's report.

    name: the option whose value `given` is, if it is one.
    """
    try:
        return model.model_validate(given)
    except ValidationError as exc:
        problems = exc.errors(include_url=False, include_input=False)
        raise ValueError("; ".join(_sentence(problem, name) for problem in problems)) from None


def _sentence(problem: Mapping[str, Any], name: str) -> str:
    where = ".".join([*([name] if name else []), *map(str, problem["loc"])])
    return f"option {where}: {problem['msg'].removeprefix('Value error, ')}"
