"""What servers told their clients first: `initialize`, `server/discover` and lists, for clients of the next start.

A client gets the answer that an equal client got, while its server starts. The server then confirms or corrects it.
Only answers from before the first tool call are kept, because calls may change what a server lists.
"""

from __future__ import annotations

import hashlib
import json

from toolhub.catalog.store import CatalogStore
from toolhub.config import ServerSpec
from toolhub.model import ClientProfile, Json

# Per server: five lists and an introduction for eight kinds of clients.
_MOST_ANSWERS = 48
# Servers beyond this number are dropped, oldest first.
_MOST_SERVERS = 2000


def answer_name(method: str, profile: ClientProfile) -> str:
    """Return the name of an answer: equal for clients that say the same about themselves."""
    hello = json.dumps(profile.hello, sort_keys=True)
    return f"{method} {profile.era} {hashlib.sha256(hello.encode()).hexdigest()[:32]}"


def answers_may_be_saved(spec: ServerSpec, fingerprint: str) -> bool:
    """Whether all tasks would get equal answers, and a start brings a session that later requests use.

    fingerprint: that of the spec.
    """
    return spec.share != "call" and fingerprint == spec.template_fingerprint


class SavedAnswers:
    """Answers by server and name, shared by all tasks of a hub. store: for the next hub; None: only for this one."""

    def __init__(self, store: CatalogStore | None = None) -> None:
        self._store = store
        self._servers: dict[str, dict[str, Json]] = {}

    def get(self, spec: ServerSpec, name: str) -> Json | None:
        """Return an answer, which must not be changed; None if it is not known."""
        return self._of(spec).get(name)

    def put(self, spec: ServerSpec, name: str, answer: Json) -> None:
        answers = self._of(spec)
        if answers.get(name) == answer:
            return
        answers.pop(name, None)
        answers[name] = answer
        while len(answers) > _MOST_ANSWERS:
            del answers[next(iter(answers))]
        if self._store is not None:
            self._store.write(spec, [{"name": name, "answer": answer} for name, answer in answers.items()])

    def _of(self, spec: ServerSpec) -> dict[str, Json]:
        identity = f"{spec.name}:{spec.template_fingerprint}"
        answers = self._servers.get(identity)
        if answers is None:
            kept = (self._store.read(spec) if self._store is not None else None) or []
            answers = {one["name"]: one["answer"] for one in kept if isinstance(one.get("answer"), dict)}
            self._servers[identity] = answers
            if len(self._servers) > _MOST_SERVERS:
                del self._servers[next(iter(self._servers))]
        return answers
