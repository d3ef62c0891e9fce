"""How long a training will take, said once after its first updates."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

MEASURED = 10  # updates; the one before them is slower, as everything is loaded


def planned_updates(whole: Any) -> int:
    """Updates of a whole training, by fairseq's configuration; 0 where nothing says it."""
    schedule = getattr(whole.lr_scheduler, "total_num_update", None)
    return int(whole.optimization.max_update or schedule or 0)


class Forecast:
    """Told of every batch, it has a line to say after the first updates of the process.

    Args:
        planned: updates of the whole training.
    """

    def __init__(self, planned: int) -> None:
        self.planned = planned
        self._begin: tuple[int, float] | None = None
        self._first: int | None = None
        self._said = False

    def line(self, done: int, seconds: float) -> str | None:
        """What there is to say, once.

        Args:
            done: updates of the training so far.
            seconds: on any clock.
        """
        if self._said or not self.planned:
            return None
        if self._first is None:
            self._first = done
        if self._begin is None:
            if done > self._first:
                self._begin = done, seconds
            return None
        since, start = self._begin
        if done < since + MEASURED:
            return None
        self._said = True
        each, left = (seconds - start) / (done - since), max(self.planned - done, 0)
        return f"{each:.3g} s an update: the {left:,} that are left take about {duration(each * left)}"


def duration(seconds: float) -> str:
    """A span of time as people say it, in two units at most."""
    whole = timedelta(seconds=round(seconds))
    hours, minutes = divmod(whole.seconds // 60, 60)
    if whole.days:
        return f"{whole.days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole.seconds % 60} s" if minutes else f"{whole.seconds} s"
