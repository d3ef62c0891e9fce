"""The real commands, one after the other, as a user runs them: scripts, fairseq-train, fairseq-validate."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tiny_glue
import torch
from commands import attempt, run, started
from matplotlib.image import imread
from tiny_model import RunsCode
from torch.serialization import get_unsafe_globals_in_checkpoint

from tupe_fairseq import checkpoints
from tupe_fairseq.plots import read_curve
from tupe_fairseq.variants import VARIANTS
from tupe_fairseq.word_order import python_documents

pytestmark = pytest.mark.slow

# What takes a model of tiny size through a few updates; the names of the flags are also those of a recipe.
SHORT = {
    "--tokens-per-sample": "32",
    "--batch-size": "32",
    "--optimizer": "fused_adamw",
    "--lr": "1e-3",
    "--lr-scheduler": "polynomial_decay",
    "--warmup-updates": "2",
    "--total-num-update": "8",
    "--max-update": "8",
    "--log-format": "simple",
    "--log-interval": "1",
    "--no-epoch-checkpoints": "",
    "--num-workers": "0",
}


def flags(**changes: str) -> list[str]:
    """SHORT as arguments; ``max_update="4"`` changes a flag."""
    chosen = SHORT | {"--" + name.replace("_", "-"): value for name, value in changes.items()}
    return [word for pair in chosen.items() for word in pair if word]


def losses(output: str) -> dict[int, float]:
    """Update and training loss in what fairseq-train prints."""
    found = re.findall(r"train_inner \|.*?loss=([\d.]+).*?num_updates=(\d+)", output)
    return {int(update): float(loss) for loss, update in found}


def train_flags(root: Path, corpus: Path, save_dir: Path) -> list[str | Path]:
    """A bare fairseq-train, with no script of ours."""
    return [
        *("fairseq-train", corpus / "bin", "--user-dir", root / "tupe_fairseq"),
        *("--task", "tupe_masked_lm", "--criterion", "masked_lm", "--arch", "tupe_r_tiny"),
        *("--save-dir", save_dir),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands run; its name has a space."""
    return tmp_path_factory.mktemp("a run")


@pytest.fixture(scope="module")
def corpus(folder: Path, root: Path) -> Path:
    documents = [document for _, document in zip(range(120), python_documents())]
    text = "\n\n".join("\n".join(document) for document in documents)
    (folder / "text.txt").write_text(text, encoding="utf-8")
    script = root / "scripts" / "prepare_corpus.sh"
    run("bash", script, "-o", "corpus", "-v", "500", "--valid-every", "10", "text.txt", cwd=folder)
    return folder / "corpus"


@pytest.fixture(scope="module")
def pretrained(folder: Path, root: Path, corpus: Path) -> tuple[Path, str]:
    """A save folder of scripts/pretrain.sh, and what the script printed."""
    save_dir = folder / "pretrained"
    script = root / "scripts" / "pretrain.sh"
    output = run("bash", script, "corpus", save_dir, *flags(), cwd=folder, ARCH="tupe_r_tiny")
    return save_dir, output


def test_pretraining_says_what_it_does(pretrained: tuple[Path, str]) -> None:
    save_dir, output = pretrained
    # 500 pieces and <mask>: 2 layers of 198,272; embeddings 501 x 128; LM head 16,512 + 256 + 501; norms; 33
    # rows of positions, their LayerNorm and projections; 33 x 2 relative
    layers = 2 * (4 * 128 * 128 + 4 * 128 + 2 * 128 * 512 + 512 + 128 + 4 * 128)
    head, positions = 128 * 128 + 128 + 256 + 501, 33 * 128 + 256 + 2 * (128 * 128 + 128) + 33 * 2
    parameters = layers + 501 * 128 + 256 + head + positions
    assert f"model: tupe_r_tiny, {parameters:,} parameters" in output
    assert "an update: 32 sequences of up to 32 tokens, 1,024 tokens (32 x update-freq 1 x 1 worker" in output
    assert "training: 8 updates" in output
    steps, curve = read_curve(save_dir)
    assert steps[-1] == 8
    assert 5 < curve[-1] < 10, "bits a token, near log2(500) = 9"
    steps, _ = read_curve(save_dir, "train_inner")
    assert steps == list(range(1, 9))


def test_training_learns(pretrained: tuple[Path, str]) -> None:
    by_update = losses(pretrained[1])
    assert by_update[8] < by_update[1] - 0.2


def test_checkpoints_hold_no_classes(pretrained: tuple[Path, str]) -> None:
    for path in pretrained[0].glob("*.pt"):
        assert get_unsafe_globals_in_checkpoint(path) == []


def test_a_cut_run_goes_on_as_if_it_had_not_been(
    folder: Path, root: Path, corpus: Path, pretrained: tuple[Path, str]
) -> None:
    command = ("bash", root / "scripts" / "pretrain.sh", "corpus", "cut")
    run(*command, *flags(max_update="3"), cwd=folder, ARCH="tupe_r_tiny")
    output = run(*command, *flags(), cwd=folder, ARCH="tupe_r_tiny")
    assert "Loaded checkpoint" in output
    whole = losses(pretrained[1])
    assert losses(output) == {update: loss for update, loss in whole.items() if update > 3}
    states = [torch.load(d / "checkpoint_last.pt")["model"] for d in (folder / "cut", pretrained[0])]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[1])


def test_fairseq_validate_gives_the_loss_of_training(
    folder: Path, root: Path, corpus: Path, pretrained: tuple[Path, str]
) -> None:
    save_dir, _ = pretrained
    output = run(
        *("fairseq-validate", corpus / "bin", "--user-dir", root / "tupe_fairseq"),
        *("--task", "tupe_masked_lm", "--path", save_dir / "checkpoint_last.pt", "--batch-size", "7"),
        *("--log-format", "simple", "--num-workers", "0"),
        cwd=folder,
    )
    loss = float(re.findall(r"\| valid \|.*?loss ([\d.]+)", output)[-1])
    assert loss == pytest.approx(read_curve(save_dir)[1][-1], abs=2e-3)


def test_the_user_beats_architecture_and_recipe(folder: Path, root: Path, corpus: Path) -> None:
    config = folder / "recipe.args"
    config.write_text("# a comment\n\n--lr 5   # beaten\n--dropout 0.5\n")
    given = flags(encoder_layers="1", max_positions="40", rel_pos_bins="8", no_save="", max_update="1")
    output = run(
        *("bash", root / "scripts" / "pretrain.sh", "corpus", "beaten", *given),
        cwd=folder,
        ARCH="tupe_a_tiny",
        CONFIG=str(config),
        LOGLEVEL="DEBUG",  # which shows the configuration
    )
    shown = output[output.index("'model': {") :]
    model = dict(re.findall(r"'(\w+)': '?([\w.]+)", shown[: shown.index("}")]))
    assert model["_name"] == "tupe_a_tiny"
    assert model["variant"] == "tupe_a"
    assert (model["encoder_layers"], model["max_positions"], model["rel_pos_bins"]) == ("1", "40", "8")
    assert (model["encoder_embed_dim"], model["dropout"]) == ("128", "0.5")
    assert "'lr': [0.001]" in output


def copy_of_plugin(root: Path, folder: Path) -> Path:
    copy = folder / "copy"
    copy.mkdir()
    needs = [path.name for path in root.glob("requirements*.txt")]
    for name in ("setup.py", "README.md", *needs, "pyproject.toml"):
        shutil.copy(root / name, copy / name)
    for name in ("LICENSE", "ATTRIBUTION.md"):
        shutil.copy(root / name, copy / name)
    shutil.copytree(
        root / "tupe_fairseq", copy / "tupe_fairseq", ignore=shutil.ignore_patterns("__pycache__")
    )
    return copy


@pytest.mark.parametrize("way", ["relative path", "link", "installed"])
def test_the_plugin_loads(way: str, folder: Path, root: Path, corpus: Path, tmp_path: Path) -> None:
    """From another folder by a relative path, through a link of another name, and where it is installed."""
    user_dirs, environment = [root / "tupe_fairseq"], {"PYTHONPATH": ""}
    if way == "relative path":
        user_dirs = [Path(os.path.relpath(user_dirs[0], folder))]
    elif way == "link":
        user_dirs = [tmp_path / "another_name"]
        user_dirs[0].symlink_to(root / "tupe_fairseq")
    else:
        copy, site = copy_of_plugin(root, tmp_path), tmp_path / "site"
        install = ("-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", site, copy)
        run(sys.executable, *install, cwd=tmp_path)
        environment["PYTHONPATH"] = str(site)
        where = "import tupe_fairseq.model as m; print(m.__file__)"
        imported = run(sys.executable, "-c", where, cwd=tmp_path, **environment)
        assert imported == f"{site / 'tupe_fairseq' / 'model.py'}\n"
        user_dirs.append(site / "tupe_fairseq")  # and the checkout's still loads beside it
    command = train_flags(root, corpus, tmp_path / "save")
    for user_dir in user_dirs:
        command[command.index("--user-dir") + 1] = user_dir
        output = run(*command, *flags(max_update="1", no_save=""), cwd=folder, **environment)
        assert "num_updates: 1 >= max_update: 1" in output


def test_two_nodes_train_one_model(folder: Path, root: Path, corpus: Path) -> None:
    """Two torchruns, as on two machines, of a process each with half the batch, train what one process does.

    The checkpoints have losses in full, logs three decimals.
    """
    script = ("bash", root / "scripts" / "pretrain.sh", "corpus")
    few = flags(max_update="3", batch_size="16", dropout="0", attention_dropout="0", disable_validation="")
    environment = {"ARCH": "tupe_r_tiny", "OMP_NUM_THREADS": "1"}
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    torchrun = ("torchrun", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d")
    nodes = (*torchrun, "--rdzv-endpoint", address, "--no-python", *script, "nodes", *few)
    with ThreadPoolExecutor(2) as pool:
        said = "".join(pool.map(lambda _: run(*nodes, cwd=folder, **environment), range(2)))
    run(*script, "one", *few, "--update-freq", "2", cwd=folder, **environment)
    assert "x 2 worker" in said
    two, one = (checkpoints.load(folder / name / "checkpoint_last.pt") for name in ("nodes", "one"))
    meters = [
        {key: meter for _, key, _, meter in dict(state["extra_state"]["metrics"])["train"]}
        for state in (two, one)
    ]
    for key in ("loss", "gnorm"):
        last = [float(each[key]["val"]) for each in meters]
        mean = [float(each[key]["sum"] / each[key]["count"]) for each in meters]
        assert (last[0], mean[0]) == pytest.approx((last[1], mean[1]), abs=1e-5)
    for name, weight in one["model"].items():
        torch.testing.assert_close(two["model"][name], weight, atol=1e-5, rtol=0)


def test_a_process_that_is_killed_ends_the_other(folder: Path, root: Path, corpus: Path) -> None:
    """Both were training; fairseq's own words about the lost connection come before ours."""
    command = ["bash", str(root / "scripts" / "pretrain.sh"), "corpus", "killed", "--no-save"]
    environment = {**os.environ, "ARCH": "tupe_r_tiny", "NPROC": "2", "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    command += flags(max_update="1000000", total_num_update="1000000", batch_size="4")
    with started(args=command, cwd=folder, env=environment) as process:
        while "num_updates=3," not in process.stdout.readline():
            assert process.poll() is None
        own = subprocess.run(["pgrep", "-P", str(process.pid)], stdout=subprocess.PIPE, text=True, check=True)
        first, second = map(int, own.stdout.split())
        os.kill(second, signal.SIGKILL)
        rest, _ = process.communicate(timeout=60)
        assert process.returncode == 1
    last = rest.splitlines()[-1]
    assert re.match(r"pretrain: worker [01] of 2 was ended by SIGKILL \(the system does that where mem", last)
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_two_processes_refuse_in_one_sentence(folder: Path, root: Path, corpus: Path) -> None:
    command = ("bash", root / "scripts" / "pretrain.sh", "corpus", "refused", *flags(batch_size="999999"))
    failed = attempt(*command, cwd=folder, ARCH="tupe_r_tiny", NPROC="2")
    assert failed.returncode == 1
    assert failed.stdout.splitlines()[-1].startswith("pretrain: corpus/bin (train, epoch 1) has ")
    assert "an update needs 1,999,998 (--batch-size 999999 x --update-freq 1 x 2 process" in failed.stdout
    assert "Traceback" not in failed.stdout
    assert failed.stdout.count("pretrain: ") == 1


@pytest.fixture(scope="module")
def glue_bin(folder: Path, corpus: Path) -> Path:
    """RTE, 40 rows to train on, most of them longer than 32 pieces, not all longer than 64."""
    tiny_glue.make_rte(folder, corpus, words=12)
    return folder / "bin"


def finetune(root: Path, folder: Path, checkpoint: Path, save_dir: str, *given: str) -> str:
    script = root / "scripts" / "finetune_glue.sh"
    schedule = ("--max-epoch", "2", "--batch-size", "10", "--log-interval", "1", "--num-workers", "0")
    return run("bash", script, "RTE", folder / "bin", checkpoint, save_dir, *schedule, *given, cwd=folder)


def test_every_variant_trains(folder: Path, root: Path, corpus: Path, glue_bin: Path) -> None:
    """20 updates of pre-training, then a fine-tuning from there; two variants at a time."""

    def train(variant: str) -> tuple[str, str]:
        command = ("bash", root / "scripts" / "pretrain.sh", "corpus", variant)
        given = flags(max_update="20", total_num_update="20")
        environment = {"ARCH": f"{variant}_tiny", "OMP_NUM_THREADS": "1"}
        pretraining = run(*command, *given, cwd=folder, **environment)
        checkpoint = folder / variant / "checkpoint_last.pt"
        return pretraining, finetune(root, folder, checkpoint, f"{variant}-rte", "--no-save")

    with ThreadPoolExecutor(2) as pool:
        for pretraining, finetuning in pool.map(train, VARIANTS):
            by_update = losses(pretraining)
            assert sorted(by_update) == list(range(1, 21))
            assert by_update[20] < by_update[1] - 0.5
            assert len(losses(finetuning)) == 8
            assert len(re.findall(r"\| valid \|.*accuracy", finetuning)) == 2


def test_finetuning_at_twice_the_length(
    folder: Path, root: Path, pretrained: tuple[Path, str], glue_bin: Path
) -> None:
    checkpoint = pretrained[0] / "checkpoint_last.pt"
    given = ("--max-positions", "64", "--resize-positions")
    output = finetune(root, folder, checkpoint, "longer", *given)
    assert "32 positions in the checkpoint, 64 here; its rows are interpolated" in output
    cut = re.findall(r"train: 40 rows, (\d+) .* cut to (\d+) tokens", output)
    cut += re.findall(
        r"train: 40 rows, (\d+) .* cut to (\d+) tokens", finetune(root, folder, checkpoint, "shorter")
    )
    assert [tokens for _, tokens in cut] == ["64", "32"]
    assert int(cut[0][0]) < int(cut[1][0])
    again = finetune(root, folder, checkpoint, "longer", *given, "--max-epoch", "3")
    assert "Loaded checkpoint longer/checkpoint_last.pt" in again
    assert sorted(losses(again)) == list(range(9, 13))


@pytest.mark.parametrize("way", ["--restore-file", "--finetune-from-model", "resume"])
def test_what_does_not_fit_is_one_sentence(
    way: str, folder: Path, root: Path, pretrained: tuple[Path, str], tmp_path: Path
) -> None:
    """A checkpoint of another variant, and one that would run a command."""
    witness = tmp_path / "it-ran"
    torch.save({"model": RunsCode(f"touch {witness}")}, tmp_path / "hostile.pt")
    command = ("bash", root / "scripts" / "pretrain.sh", "corpus")
    sources = (pretrained[0] / "checkpoint_last.pt", tmp_path / "hostile.pt")
    sentences = ("variant tupe_r there, bert_a here (--arch)", "was not loaded: it names posix.system")
    for i, (source, sentence) in enumerate(zip(sources, sentences)):
        save_dir, given = tmp_path / str(i), [way, source]
        if way == "resume":
            save_dir.mkdir()
            shutil.copy(source, save_dir / "checkpoint_last.pt")
            given = []
        failed = attempt(*command, save_dir, *flags(), *given, cwd=folder, ARCH="bert_a_tiny")
        assert failed.returncode == 1
        last = failed.stdout.splitlines()[-1]
        assert last.startswith("pretrain: ") and sentence in last
        assert "Traceback" not in failed.stdout
    assert not witness.exists()


def test_quickstart(folder: Path, root: Path, tmp_path: Path) -> None:
    """The whole of it, with a recipe of a few updates; the environment that runs the tests is set up."""
    config = tmp_path / "recipe.args"
    config.write_text("\n".join(f"{flag} {value}" for flag, value in SHORT.items()))
    environment = {"CONFIG": str(config), "OUT_DIR": "out", "VENV": sys.prefix}
    output = run("bash", root / "scripts" / "quickstart.sh", cwd=tmp_path, **environment)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary.keys() == {
        *("unigram_bits", "valid_bits_first", "valid_bits_last"),
        *("finetune_mcc", "finetune_accuracy", "seconds"),
    }
    assert summary["valid_bits_first"] == pytest.approx(10.97, abs=0.1), "log2(2001), of an untrained model"
    assert summary["valid_bits_last"] < summary["valid_bits_first"]
    assert -1 <= summary["finetune_mcc"] <= 1
    assert set(summary["seconds"]) >= {"pre-training", "fine-tuning"}
    assert f"{summary['valid_bits_last']:.2f}" in output
    assert "tensorboard --logdir out" in output
    for picture in ("loss.png", "positions.png"):
        pixels: Sequence = imread(tmp_path / "out" / picture)
        assert min(pixels.shape[:2]) > 400
        assert pixels.std() > 0.05, "not blank"


@pytest.mark.parametrize(
    "script", ["pretrain", "finetune_glue", "prepare_glue", "prepare_corpus", "quickstart"]
)
def test_scripts_explain_themselves(script: str, root: Path, tmp_path: Path) -> None:
    output = run("bash", root / "scripts" / f"{script}.sh", "-h", cwd=tmp_path)
    assert f"bash scripts/{script}.sh" in output
    assert list(tmp_path.iterdir()) == []


def test_dry_run_prints_the_command(root: Path, corpus: Path, tmp_path: Path) -> None:
    output = run(
        *("bash", root / "scripts" / "pretrain.sh", corpus, "save", "--lr", "7"),
        cwd=tmp_path,
        DRY_RUN="1",
        ARCH="tupe_a_small",
    )
    assert output.startswith("python -m tupe_fairseq.train ")
    assert output.count(" --lr ") == 2
    assert output.rstrip().endswith("--lr 7"), "the user's flags come last"
    assert list(tmp_path.iterdir()) == []
