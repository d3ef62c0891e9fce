"""What the tests share: the repository's root and the real data kept beside it."""

import signal
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("no clock", deadline=None)  # machines have other work
settings.load_profile("no clock")

ROOT = Path(__file__).resolve().parent.parent
SHARED_DATA = ROOT.parent / "shared" / "data"


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real GLUE, text and golden values; tests that need them are skipped where the folder does not exist."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no folder {SHARED_DATA}: real data is kept outside the project")
    return SHARED_DATA


@pytest.fixture(autouse=True)
def signals_as_in_a_terminal() -> None:
    """A job in the background of a shell ignores Ctrl-C, and so would all commands that tests start."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
