"""What the scripts promise whatever they run, with a stand-in for the Python of the environment."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from commands import started

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
LONG = 60  # seconds until something that should end at once counts as hanging
# A Python that knows its version, and does with the modules of the package what the environment tells it.
PYTHON = """#!/bin/bash
case "$*" in
  *version_info*) echo 3.11 ;;
  "-m tupe_fairseq."*)
    [[ "$2" != "$STOP_AT" ]] || { echo "boom" >&2; exit 3; }
    [[ "$2" != "$HANG_AT" ]] || { exec 9> "$SAID"; echo $$ >&9; exec cat "$FIFO"; }
    printf '%s\\n' "$@" ;;
esac
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a stand-in for .venv, a prepared corpus, and two fifos; not in ASCII."""
    folder = tmp_path / "ein Ör t"
    (folder / "venv" / "bin").mkdir(parents=True)
    for name in ("python", "python3"):
        (folder / "venv" / "bin" / name).write_text(PYTHON)
        (folder / "venv" / "bin" / name).chmod(0o755)
    (folder / "corpus" / "bin").mkdir(parents=True)
    for name in ("dict.txt", "train.idx", "train.bin", "valid.idx", "valid.bin"):
        (folder / "corpus" / "bin" / name).touch()
    for name in ("dict.txt", "spm.model"):
        (folder / "corpus" / name).write_text("▁a 1\n", encoding="utf-8")
    os.mkfifo(folder / "fifo")
    os.mkfifo(folder / "said")
    return folder


def command(
    place: Path, script: str, *arguments: object, scripts: Path = SCRIPTS, **environment: str
) -> dict:
    """What starts a script in that folder, for subprocess."""
    variables = {"VENV": "venv", "FIFO": "fifo", "SAID": "said", "LC_ALL": "C", **environment}
    variables.setdefault("PYTHON", str(place / "venv" / "bin" / "python"))
    return {
        "args": ["bash", str(scripts / f"{script}.sh"), *map(str, arguments)],
        "cwd": place,
        "env": {**os.environ, **variables},
        "text": True,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
    }


def attempt(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(**command(*arguments, **options), check=False)


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_pretraining_from_a_tree_elsewhere_twice(place: Path, tmp_path: Path) -> None:
    """Spaces in every path, the locale C, another working directory; the tree stays as it is."""
    tree = tmp_path / "ein Baum"
    for name in ("scripts", "configs"):
        shutil.copytree(SCRIPTS.parent / name, tree / name)
    for path in (*tree.rglob("*"), tree):
        path.chmod(path.stat().st_mode & ~0o222)
    before = names(tree)
    for _ in range(2):
        done = attempt(place, "pretrain", "corpus", "ein Lauf", "--seed", 3, scripts=tree / "scripts")
        assert done.returncode == 0, done.stdout
        words = done.stdout.splitlines()
        assert words[:3] == ["-m", "tupe_fairseq.train", "corpus/bin"]
        assert words[words.index("--save-dir") + 1] == "ein Lauf"
        assert words[words.index("--tokens-per-sample") + 1] == "512", "of the recipe of base"
        assert words[-2:] == ["--seed", "3"]
    assert names(place / "ein Lauf") == {"dict.txt", "spm.model"}
    assert names(tree) == before


@pytest.mark.parametrize(
    "script", ["prepare_corpus", "prepare_glue", "pretrain", "finetune_glue", "sweep_glue", "benchmark"]
)
def test_a_signal_reaches_what_a_script_runs(place: Path, script: str) -> None:
    """The last command stands in place of the shell: the process that was started."""
    (place / "glue" / "RTE").mkdir(parents=True)
    (place / "model.pt").touch()
    module, *arguments = {
        "prepare_corpus": ("corpus", "-o", "c", "t"),
        "prepare_glue": ("glue_data", "-g", "g"),
        "pretrain": ("train", "corpus", "save"),
        "finetune_glue": ("train", "RTE", "glue", "model.pt", "save"),
        "sweep_glue": ("glue_sweep", "glue", "model.pt", "runs"),
        "benchmark": ("benchmark",),
    }[script]
    with started(**command(place, script, *arguments, HANG_AT=f"tupe_fairseq.{module}")) as process:
        with (place / "said").open() as said:
            assert int(said.readline()) == process.pid
        process.terminate()
        assert process.wait(LONG) == -signal.SIGTERM


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_to_the_quickstart_ends_its_step(place: Path, name: str) -> None:
    number = getattr(signal, name)
    environment = {"HANG_AT": "tupe_fairseq.word_order", "OUT_DIR": "out"}
    with started(**command(place, "quickstart", **environment)) as process, (place / "said").open() as said:
        step = int(said.readline())
        try:
            process.send_signal(number)
            assert process.wait(LONG) == -number
            assert select.select([said], [], [], LONG)[0], "the step has not ended"
            assert said.read() == ""
        finally:
            with suppress(ProcessLookupError):
                os.kill(step, signal.SIGKILL)


def test_a_step_that_fails_is_not_hidden_by_the_pipe_behind_it(place: Path) -> None:
    done = attempt(place, "quickstart", STOP_AT="tupe_fairseq.word_order", OUT_DIR="out")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-2:] == [
        "boom",
        "quickstart: 'text' failed; all it said is in out/log/text.log",
    ]
    assert names(place / "out") == {".quickstart", "log", "log/set-up.log", "log/text.log", "seconds.tsv"}


@pytest.mark.parametrize(
    "script, arguments, environment, sentence",
    [
        ("pretrain", ("corpus",), {}, "needs CORPUS and SAVE_DIR (see -h)"),
        (
            "pretrain",
            ("none", "save"),
            {},
            "no none/bin/dict.txt; scripts/prepare_corpus.sh -o none",
        ),
        (
            "pretrain",
            ("corpus:none", "save"),
            {},
            "no none/bin/dict.txt; scripts/prepare_corpus.sh -o none",
        ),
        ("pretrain", ("corpus", "corpus/dict.txt/save"), {}, "cannot make the folder corpus/dict.txt/save"),
        ("pretrain", ("corpus", "/proc"), {}, "cannot copy corpus/dict.txt to /proc ("),
        ("pretrain", ("corpus", "save"), {"ARCH": "tupe_r_huge"}, "no recipe "),
        ("pretrain", ("corpus", "save"), {"CONFIG": "corpus"}, "no recipe corpus; ARCH is"),
        ("pretrain", ("corpus", "save"), {"NPROC": "two"}, "NPROC=two is no number of processes"),
        (
            "pretrain",
            ("corpus", "other"),
            {},
            "other/dict.txt differs from corpus/dict.txt: these are",
        ),
        (
            "finetune_glue",
            ("RTE", "none", "model.pt", "save"),
            {},
            "no folder none/RTE; scripts/prepare_gl",
        ),
        (
            "finetune_glue",
            ("RTE", "glue", "none.pt", "save"),
            {},
            "no checkpoint none.pt; scripts/pretrain.sh",
        ),
        ("sweep_glue", ("glue", "model.pt"), {}, "needs GLUE_BIN, CHECKPOINT and RUNS"),
        ("quickstart", ("none.txt",), {}, "cannot read the text none.txt"),
        ("quickstart", (), {"OUT_DIR": "corpus"}, "corpus holds other files than a quickstart's"),
    ],
)
def test_a_refusal_is_one_sentence_with_the_name_of_the_command(
    place: Path, script: str, arguments: tuple[str, ...], environment: dict[str, str], sentence: str
) -> None:
    """Before anything is started or written."""
    (place / "other").mkdir()
    (place / "other" / "dict.txt").write_text("of 1\nothers 1\n")
    (place / "glue" / "RTE").mkdir(parents=True)
    before = names(place)
    done = attempt(place, script, *arguments, **environment)
    assert done.returncode == 1
    assert done.stdout.count("\n") == 1 and done.stdout.startswith(f"{script}: {sentence}")
    assert names(place) - before <= {"save"}


def test_under_slurm_a_torchrun_a_node(place: Path) -> None:
    """Stand-ins print what torchrun is asked for."""
    for name, does in (("srun", 'exec "$@"'), ("scontrol", "echo n1; echo n2"), ("torchrun", 'echo "$*"')):
        (place / "venv" / "bin" / name).write_text(f"#!/bin/bash\n{does}\n")
        (place / "venv" / "bin" / name).chmod(0o755)
    job = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "1234567"}
    start = command(place, "pretrain", "corpus", "ein Lauf", **job)
    start["args"][1] = str(SCRIPTS / "slurm.sbatch")
    assert subprocess.run(**start, check=True).stdout == (
        "--nnodes 2 --nproc-per-node gpu --rdzv-backend c10d --rdzv-id 1234567 --rdzv-endpoint n1:24567 "
        "--no-python bash scripts/pretrain.sh corpus ein Lauf\n"
    )


@pytest.mark.parametrize(
    "environment, count", [({}, "1"), ({"NPROC": "3"}, "3"), ({"WORLD_SIZE": "16"}, "16")], ids=str
)
def test_updates_of_fine_tuning_are_counted_for_all_processes(
    place: Path, environment: dict[str, str], count: str
) -> None:
    """The stand-in prints what it is asked, and so the first command's words are among the second's."""
    (place / "glue" / "RTE").mkdir(parents=True)
    (place / "model.pt").touch()
    done = attempt(place, "finetune_glue", "RTE", "glue", "model.pt", "save", **environment)
    words = done.stdout.splitlines()
    asked = words.index("tupe_fairseq.glue_flags")
    assert words[asked + 1 : asked + 6] == ["RTE", "glue", "model.pt", "--distributed-world-size", count]
