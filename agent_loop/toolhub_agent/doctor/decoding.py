"""Is a recipe for speculative decoding worth it? Compares a server that has one with the same server without.

Both get the same turns, each of which asks for one tool call, at several numbers of requests at once, and in turns, so
that a busy moment of the machine does not count for one of them alone. A recipe that loses valid calls is refused,
however fast it is.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import anyio

from toolhub_agent.doctor.probe import ModelServer, RequestFailed
from toolhub_agent.llm.accumulator import AnswerAccumulator
from toolhub_agent.types import Json

LEVELS: Mapping[int, int] = {1: 6, 4: 16, 16: 32}
"""Requests at once, and how many requests each server gets."""
# All of it, on both servers. What is not measured by then is left out.
COMPARE_TIMEOUT_S = 600.0
# One turn. At 16 at once a slow server takes minutes for all of them.
TURN_TIMEOUT_S = 180.0
# A difference below this is noise.
MIN_GAIN = 1.05

# --- Acceptance -------------------------------------------------------------------------------------------------------

_DRAFTED, _ACCEPTED = "vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"
_COUNTER = re.compile(rf"^({_DRAFTED}|{_ACCEPTED})(?:\{{[^\n]*\}})?[ \t]+([0-9.eE+]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Tokens that an engine has drafted, and those of them that its model accepted."""

    drafted: int
    accepted: int

    @property
    def acceptance(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    def __sub__(self, before: DraftCounts) -> DraftCounts:
        return DraftCounts(max(0, self.drafted - before.drafted), max(0, self.accepted - before.accepted))

    def __add__(self, other: DraftCounts) -> DraftCounts:
        return DraftCounts(self.drafted + other.drafted, self.accepted + other.accepted)


def draft_counts(page: str) -> DraftCounts | None:
    """The counts in a page of metrics, summed over ranks. None: the engine counts none, or does not speculate."""
    found: Counter[str] = Counter()
    for name, written in _COUNTER.findall(page):
        found[name] += int(float(written))
    return DraftCounts(found[_DRAFTED], found[_ACCEPTED]) if _DRAFTED in found else None


# --- Turns ------------------------------------------------------------------------------------------------------------
# Turns as agents have them: the model copies from a tool's result into a call's arguments. In every second one the
# model decides by itself to call; in the others the server holds it to the tool's schema (structured outputs).

_TOOL = "save_entries"
_ENTRIES, _SAVED = 12, 4
# A call of four entries has about 120 tokens; a model that thinks first needs more.
_MAX_TOKENS = 1200
_WORDS = (
    "heron river stone lantern market winter copper garden bridge letter harbour music painter valley orchard silver "
    "station window candle forest museum island thunder village pepper marble compass feather meadow engine"
).split()


@dataclass(frozen=True)
class CallTurn:
    """One request that asks for one tool call. find_fault: what is wrong with the answer; None: its call is valid."""

    body: Json
    find_fault: Callable[[AnswerAccumulator], str | None]


def copy_turn(number: int) -> CallTurn:
    """The same for a number each time; others share no entry with it."""
    source = random.Random(f"turn {number}")  # noqa: S311 - texts of a test, no secrets
    entries = [
        f"{number}.{at}: the {' '.join(source.choices(_WORDS, k=10))} of {source.randrange(1000, 9999)}"
        for at in range(1, _ENTRIES + 1)
    ]
    wanted = sorted(source.sample(range(1, _ENTRIES + 1), _SAVED))
    is_forced = bool(number % 2)
    messages = [
        {"role": "system", "content": "You keep notes. You use tools, and copy texts exactly."},
        {"role": "user", "content": "A page says:\n" + "\n".join(entries)},
        {"role": "assistant", "content": "I have read it."},
        {
            "role": "user",
            "content": f"Call the tool {_TOOL} once with the entries {', '.join(f'{number}.{at}' for at in wanted)}, "
            "each as a whole line, word for word. Say nothing else.",
        },
    ]
    body: Json = {
        "messages": messages,
        "tools": [_save_tool(entries if is_forced else None)],
        "max_tokens": _MAX_TOKENS,
    }
    body["tool_choice"] = {"type": "function", "function": {"name": _TOOL}} if is_forced else "auto"
    return CallTurn(body, lambda answer: _fault_of(answer, entries))


def _save_tool(allowed: Sequence[str] | None) -> Json:
    entry: Json = {"type": "string"} if allowed is None else {"type": "string", "enum": list(allowed)}
    saved: Json = {"type": "array", "items": entry, "minItems": _SAVED, "maxItems": _SAVED}
    schema = {
        "type": "object",
        "properties": {"entries": saved},
        "required": ["entries"],
        "additionalProperties": False,
    }
    function: Json = {"name": _TOOL, "description": "Saves entries of a page.", "parameters": schema}
    if allowed is not None:
        function["strict"] = True
    return {"type": "function", "function": function}


def _entries_fault(arguments: Json, entries: Sequence[str]) -> str | None:
    if not arguments:
        return "its arguments are empty"
    saved = arguments.get("entries")
    if set(arguments) != {"entries"} or not isinstance(saved, list) or len(saved) != _SAVED:
        return "its arguments do not fit the tool's schema"
    return None if all(entry in entries for entry in saved) else "a text in it was copied wrongly"


def _fault_of(answer: AnswerAccumulator, entries: Sequence[str]) -> str | None:
    calls = answer.calls()
    if not calls:
        return "the answer was cut off" if answer.finish_reason == "length" else "the answer has no call"
    function = calls[0]["function"]
    if function["name"] != _TOOL:
        return "its tool does not exist"
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        cut = answer.finish_reason == "length"
        return "the answer was cut off" if cut else "its arguments are not JSON"
    if not isinstance(arguments, dict):
        return "its arguments are no object"
    return "there is more than one call" if len(calls) > 1 else _entries_fault(arguments, entries)


# --- Measuring --------------------------------------------------------------------------------------------------------


@dataclass
class LoadResult:
    """What one server did at one level. seconds: of the server's own rounds. faults: how often each occurred.

    drafts: None: the server does not count them.
    """

    requests: int = 0
    valid: int = 0
    tokens: int = 0
    seconds: float = 0.0
    drafts: DraftCounts | None = None
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def acceptance(self) -> float | None:
        return self.drafts.acceptance if self.drafts is not None else None


class Verdict(Enum):
    """Whether to use the recipe at one number of requests at once."""

    USE = "use it"
    NO_GAIN = "no gain"
    SLOWER = "slower"
    REFUSED = "refused"
    UNKNOWN = "not decided"


@dataclass(frozen=True)
class LevelResult:
    """at_once: requests at once."""

    at_once: int
    recipe: LoadResult
    plain: LoadResult

    @property
    def gain(self) -> float | None:
        return self.recipe.tokens_per_s / self.plain.tokens_per_s if self.plain.tokens_per_s else None

    @property
    def verdict(self) -> Verdict:
        if self.recipe.valid < self.plain.valid:
            return Verdict.REFUSED
        if not self.recipe.valid or self.gain is None:
            return Verdict.UNKNOWN
        if self.gain >= MIN_GAIN:
            return Verdict.USE
        return Verdict.SLOWER if self.gain <= 1 / MIN_GAIN else Verdict.NO_GAIN


async def compare_level(
    recipe: ModelServer,
    plain: ModelServer,
    at_once: int,
    turns: Sequence[CallTurn],
    *,
    rounds: int = 2,
    timeout: float = TURN_TIMEOUT_S,
) -> LevelResult:
    """Send every turn to both servers, one server at a time. rounds: each has a part of the turns."""
    result = LevelResult(at_once, LoadResult(), LoadResult())
    sides = [(recipe, result.recipe), (plain, result.plain)]
    for number in range(rounds):
        for server, found in sides if number % 2 == 0 else reversed(sides):
            await _add_round(server, found, turns[number::rounds], at_once, timeout)
    return result


async def _add_round(
    server: ModelServer, found: LoadResult, turns: Sequence[CallTurn], at_once: int, timeout: float
) -> None:
    before = await _drafts(server)
    places = anyio.Semaphore(at_once)
    began = anyio.current_time()

    async def take(number: int, turn: CallTurn) -> None:
        async with places:
            found.requests += 1
            try:
                answer = await server.answer(turn.body, session=f"{server.session}-{number}", timeout=timeout)
            except RequestFailed as exc:
                found.faults[f"the request failed: {exc}"[:200]] += 1
                return
        found.tokens += answer.usage.completion_tokens
        fault = turn.find_fault(answer)
        if fault is None:
            found.valid += 1
        else:
            found.faults[fault] += 1

    async with anyio.create_task_group() as group:
        for number, turn in enumerate(turns):
            group.start_soon(take, number, turn)
    found.seconds += anyio.current_time() - began
    after = await _drafts(server)
    if before is not None and after is not None:
        found.drafts = after - before if found.drafts is None else found.drafts + (after - before)


async def _drafts(server: ModelServer) -> DraftCounts | None:
    try:
        return draft_counts(await server.metrics_page())
    except RequestFailed:
        return None


async def warm_up(server: ModelServer) -> None:
    """An engine's first request of a kind takes longer. A failure shows in what follows."""
    for number in (-1, -2):
        with contextlib.suppress(RequestFailed):
            await server.answer(copy_turn(number).body, session=f"{server.session}{number}", timeout=TURN_TIMEOUT_S)


@dataclass
class Comparison:
    """levels: those that were measured in time. is_whole: all of them were."""

    recipe: str
    plain: str
    levels: list[LevelResult] = field(default_factory=list)
    is_whole: bool = False

    @property
    def is_refused(self) -> bool:
        return any(level.verdict is Verdict.REFUSED for level in self.levels)

    def conclusion(self) -> list[str]:
        """What to do, in sentences."""
        if not self.levels:
            return ["Nothing was measured in time. Try again when the servers are less busy."]
        said = [_advice(self.levels)]
        if not self.is_refused:
            said += _notes(self.levels)
        if not self.is_whole:
            said.append(f"Not all levels were measured within {COMPARE_TIMEOUT_S:.0f} s.")
        return said


async def compare(
    recipe: ModelServer,
    plain: ModelServer,
    *,
    levels: Mapping[int, int] = LEVELS,
    progress: Callable[[str], None] = lambda _text: None,
) -> Comparison:
    """Compare two servers of the same model. levels: requests at once, and how many requests each server gets."""
    found = Comparison(recipe.url, plain.url)
    with anyio.move_on_after(COMPARE_TIMEOUT_S):
        progress("first requests")
        for server in (recipe, plain):
            await warm_up(server)
        first = 0
        for at_once, requests in levels.items():
            progress(f"{at_once} at once")
            turns = [copy_turn(first + number) for number in range(requests)]
            found.levels.append(await compare_level(recipe, plain, at_once, turns))
            first += requests
        found.is_whole = True
    return found


def _advice(levels: Sequence[LevelResult]) -> str:
    lost = [level for level in levels if level.verdict is Verdict.REFUSED]
    if lost:
        with_it, without, of = (
            sum(level.recipe.valid for level in lost),
            sum(level.plain.valid for level in lost),
            sum(level.recipe.requests for level in lost),
        )
        return (
            f"Do not use it: {_at(lost)}, {with_it} of {of} tool calls were valid with it and {without} without. "
            f"Cause: {_causes(lost)}."
        )
    unknown = [level for level in levels if level.verdict is Verdict.UNKNOWN]
    if unknown:
        causes = sum((level.plain.faults for level in unknown), Counter[str]())
        return (
            f"Not decided: {_at(unknown)}, no tool call was valid on either server ({_listed(causes)}). "
            "Try it with a model and a tool parser that work together: toolhub doctor --llm URL"
        )
    groups = {verdict: [level for level in levels if level.verdict is verdict] for verdict in Verdict}
    parts = [
        f"{words} {_at(found)} ({', '.join(f'{level.gain:.2f} x' for level in found)})"
        for verdict, words in _WORDS_OF.items()
        if (found := groups[verdict])
    ]
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}. No valid tool call was lost."


_WORDS_OF = {Verdict.USE: "use it", Verdict.NO_GAIN: "no gain", Verdict.SLOWER: "do not use it, because it is slower,"}


def _notes(levels: Sequence[LevelResult]) -> list[str]:
    """What makes the comparison doubtful."""
    said = []
    if all(level.recipe.drafts is None or not level.recipe.drafts.drafted for level in levels):
        said.append("The first server's metrics count no drafted tokens: does it have the recipe?")
    if any(level.plain.drafts is not None for level in levels):
        said.append("The second server speculates as well, so this compares two recipes.")
    return said


def _at(levels: Sequence[LevelResult]) -> str:
    *most, last = [str(level.at_once) for level in levels]
    return f"at {', '.join(most)} and {last} at once" if most else f"at {last} at once"


def _causes(levels: Sequence[LevelResult]) -> str:
    """The faults that occurred more often with the recipe."""
    more = sum((level.recipe.faults - level.plain.faults for level in levels), Counter[str]())
    return _listed(more)


def _listed(faults: Counter[str]) -> str:
    return ", ".join(f"{count} x {fault}" for fault, count in faults.most_common(3)) or "unknown"


def as_data(found: Comparison) -> dict[str, Any]:
    """For programs."""
    return {
        "recipe": found.recipe,
        "plain": found.plain,
        "refused": found.is_refused,
        "conclusion": found.conclusion(),
        "levels": [
            {
                "at_once": level.at_once,
                "verdict": level.verdict.value,
                "gain": level.gain,
                "recipe": _load_data(level.recipe),
                "plain": _load_data(level.plain),
            }
            for level in found.levels
        ],
    }


def _load_data(load: LoadResult) -> dict[str, Any]:
    return {
        "requests": load.requests,
        "valid": load.valid,
        "tokens_per_s": load.tokens_per_s,
        "acceptance": load.acceptance,
        "faults": dict(load.faults),
    }
