"""What the hints did, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from toolhub_agent.hints.gain import GainReport
from toolhub_agent.hints.timing import Skip


@dataclass(frozen=True, slots=True)
class HintStatistics:
    """Counts since the start; sessions: those open now.

    warms_skipped: tool waits without a prefill-ahead, by the reason. warms_aborted: still running when the conversation
    went on. hints_failed: other hints that failed or took too long. tokens_warmed: computed by prefill-aheads; they are
    no usage of any conversation. pins: requests for retention. disabled: endpoint -> why it gets no prefill-ahead.
    """

    sessions: int
    signals: int
    dropped: int
    warms_sent: int
    warms_failed: int
    warms_aborted: int
    warms_skipped: Mapping[str, int]
    tokens_warmed: int
    pins: int
    releases: int
    hints_failed: int
    disabled: Mapping[str, str]
    gains: Mapping[str, GainReport]


@dataclass(eq=False)
class Tally:
    """The running counts behind `HintStatistics`."""

    signals: int = 0
    dropped: int = 0
    warms_sent: int = 0
    warms_failed: int = 0
    warms_aborted: int = 0
    tokens_warmed: int = 0
    pins: int = 0
    releases: int = 0
    hints_failed: int = 0
    skipped: Counter[Skip] = field(default_factory=Counter)

    def freeze(self, *, sessions: int, disabled: Mapping[str, str], gains: Mapping[str, GainReport]) -> HintStatistics:
        return HintStatistics(
            sessions=sessions,
            signals=self.signals,
            dropped=self.dropped,
            warms_sent=self.warms_sent,
            warms_failed=self.warms_failed,
            warms_aborted=self.warms_aborted,
            warms_skipped={skip.value: count for skip, count in self.skipped.items()},
            tokens_warmed=self.tokens_warmed,
            pins=self.pins,
            releases=self.releases,
            hints_failed=self.hints_failed,
            disabled=disabled,
            gains=gains,
        )
