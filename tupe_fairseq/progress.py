"""How far a stage of long work is, and how fast it goes."""

from __future__ import annotations

import time

INTERVAL = 10  # seconds between two lines


class Stage:
    """Counts the text that a stage goes through; says now and then, and at its end, how much and how fast.

    with Stage("cleaning") as stage:
        stage.bytes += 100
        stage.tell()
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.bytes = 0
        self._begun = self._told = time.monotonic()
        self.seconds = 0.0

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *error: object) -> None:
        if error == (None, None, None):
            self._print()

    def tell(self) -> None:
        """A line, if none was told for a while."""
        if time.monotonic() - self._told >= INTERVAL:
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
