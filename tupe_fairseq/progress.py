"""How far a stage of long work is, and how fast it goes: a bar in a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm

INTERVAL = 10  # seconds between two lines


class Stage:
    """Counts the text that a stage goes through; says now and then, and at its end, how much and how fast.

    with Stage("cleaning") as stage:
        stage.bytes += 100
        stage.tell()
    """

    def __init__(self, name: str, total: int | None = None) -> None:
        """Args:
        total: bytes that it will go through, if that is known.
        """
        self.name = name
        self._total = total
        self._bar: tqdm | None = None
        self.bytes = 0
        self._begun = self._told = time.monotonic()
        self.seconds = 0.0

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()
        if error == (None, None, None):
            self._print()

    def tell(self) -> None:
        """Moves the bar, or prints a line, if none was told for a while."""
        if self._bar is None and sys.stderr.isatty():
            self._bar = tqdm(total=self._total, desc=self.name, unit="B", unit_scale=True, leave=False)
        if self._bar is not None:
            self._bar.update(self.bytes - self._bar.n)
        elif time.monotonic() - self._told >= INTERVAL:
            self._print()

    def figures(self) -> dict[str, float]:
        """For a summary."""
        return {"bytes": self.bytes, "seconds": self.seconds, "mb_per_second": self._speed()}

    def _speed(self) -> float:
        return self.bytes / 1e6 / max(self.seconds, 1e-9)

    def _print(self) -> None:
        self._told = time.monotonic()
        self.seconds = self._told - self._begun
        done = f"{self.bytes / 1e6:,.1f} MB in {self.seconds:,.1f} s"
        print(f"{self.name}: {done}, {self._speed():,.1f} MB/s", flush=True)
