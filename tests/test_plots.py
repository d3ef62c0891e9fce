"""Curves out of TensorBoard's files, position biases out of checkpoints, and the pictures of both."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import reference
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.image import imread
from tiny_model import VOCAB, checkpoint, small
from torch.utils.tensorboard import SummaryWriter

from tupe_fairseq import plots
from tupe_fairseq.variants import VARIANTS


def log(run: Path, subset: str, values: dict[int, float], key: str = "loss") -> Path:
    """Writes a file of events, as one fairseq-train does; returns the folder of the run."""
    with SummaryWriter(str(run / "tensorboard" / subset)) as writer:
        for step, value in values.items():
            writer.add_scalar(key, value, step)
    return run


FOUR = ["word to word", "word to position", "position to word", "position to position"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.save(checkpoint(small()), tmp_path / "checkpoint.pt")
    return tmp_path / "checkpoint.pt"


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Figure]]:
    """The figures that were drawn, kept open to look at."""
    drawn: list[Figure] = []
    with monkeypatch.context() as patch:
        patch.setattr(plt, "close", drawn.append)
        yield drawn
    plt.close("all")


def assert_a_picture(path: Path) -> None:
    pixels = imread(path)
    assert min(pixels.shape[:2]) > 400
    assert pixels.std() > 0.05, "not blank"


def test_a_curve_is_read(tmp_path: Path) -> None:
    log(tmp_path, "valid", {10: 8.5, 20: 4.25, 30: 2.0})
    log(tmp_path, "train", {5: 1.0})
    log(tmp_path, "train", {5: 16.0}, key="ppl")
    assert plots.read_curve(tmp_path) == ([10, 20, 30], [8.5, 4.25, 2.0])
    assert plots.read_curve(tmp_path, "train", "ppl") == ([5], [16.0])


def test_a_step_that_a_resumed_run_repeats_counts_once_as_last_written(tmp_path: Path) -> None:
    log(tmp_path, "valid", {1: 8.0, 2: 7.0, 3: 6.0})
    log(tmp_path, "valid", {2: 6.5, 3: 5.5, 4: 5.0})
    assert plots.read_curve(tmp_path) == ([1, 2, 3, 4], [8.0, 6.5, 5.5, 5.0])


def test_missing_curves_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^no TensorBoard logs in .*/tensorboard/valid; our"):
        plots.read_curve(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"/tensorboard/valid holds no 'loss', only ppl$"):
        plots.read_curve(log(tmp_path, "valid", {1: 2.0}, key="ppl"))


@pytest.mark.parametrize("length", [1, 5, 12])
def test_position_terms_are_the_models(length: int) -> None:
    model = small()
    terms = plots.position_terms(model, length)
    assert terms.dtype == np.float64
    np.testing.assert_array_equal(terms, model.encoder.position_bias(length).bias.detach().numpy())


def test_position_terms_of_cross_terms_are_those_without_words() -> None:
    model = small(variant="bert_a_d").double()
    p = {key: value.numpy() for key, value in model.encoder.position_bias.state_dict().items()}
    expected = reference.position_logits("bert_a_d", 5, p, heads=2, width=16)
    np.testing.assert_allclose(plots.position_terms(model, 5), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("variant", ["bert_a", "bert_r"])
def test_the_four_terms_add_up_to_the_logits(variant: str) -> None:
    """Where no bias adds products of its own."""
    model = small(variant=variant).double()
    torch.nn.init.normal_(model.encoder.embed_layer_norm.weight)
    terms = plots.input_correlations(model, 9, sentences=3)
    assert list(terms) == FOUR
    tokens = torch.randint(4, VOCAB - 1, (3, 9), generator=torch.Generator().manual_seed(1))
    tokens[:, 0] = 0
    inputs = []
    model.encoder.layers[0].register_forward_hook(lambda module, args, out: inputs.append(args[0]))
    model.eval()(tokens)
    w_q, w_k, _ = model.encoder.layers[0].self_attn.in_proj.weight.detach().split(16)
    logits = (inputs[0] @ w_q.T).detach() @ (inputs[0] @ w_k.T).detach().transpose(1, 2) / 8**0.5
    np.testing.assert_allclose(sum(terms.values()), logits.mean(dim=0) / 2, rtol=0, atol=1e-12)


def test_a_term_by_hand() -> None:
    """The word at 2 as the query, position 5 as the key; the mean over two heads of width 8."""
    model = small(variant="bert_a").double()
    terms = plots.input_correlations(model, 9, sentences=1)
    p = {key: value.numpy() for key, value in model.encoder.state_dict().items()}
    tokens = torch.randint(4, VOCAB - 1, (1, 9), generator=torch.Generator().manual_seed(1))[0]
    word, position = p["embed_tokens.weight"][tokens], p["embed_positions.weight"]
    deviation = np.sqrt((word + position[:9]).var(axis=1) + 1e-5)
    w_q, w_k, _ = np.split(p["layers.0.self_attn.in_proj.weight"], 3)
    query = w_q @ ((word[2] - word[2].mean()) / deviation[2])
    key = w_k @ ((position[5] - position[5].mean()) / deviation[5])
    expected = sum(query * key) / np.sqrt(8) / 2
    assert terms["word to position"][2, 5] == pytest.approx(expected, rel=1e-10)


def test_the_four_terms_tell_words_from_positions() -> None:
    model = small(variant="bert_a")
    torch.nn.init.zeros_(model.encoder.embed_positions.weight)
    terms = plots.input_correlations(model, 9)
    assert [bool(term.any()) for term in terms.values()] == [True, False, False, False]
    torch.nn.init.normal_(model.encoder.embed_positions.weight)
    torch.nn.init.zeros_(model.encoder.embed_tokens.weight)
    terms = plots.input_correlations(model, 9)
    assert [bool(term.any()) for term in terms.values()] == [False, False, False, True]


PANELS = {"bert_a": FOUR, "bert_r": [*FOUR, "head 1", "head 2"]}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_is_drawn(variant: str, tmp_path: Path, figures: list[Figure]) -> None:
    torch.save(checkpoint(small(variant=variant)), tmp_path / "checkpoint.pt")
    plots.plot_positions(str(tmp_path / "checkpoint.pt"), str(tmp_path / "positions.png"))
    assert_a_picture(tmp_path / "positions.png")
    drawn = [axes for axes in figures[0].axes if axes.get_images()]
    assert [axes.get_title() for axes in drawn] == PANELS.get(variant, ["head 1", "head 2"])
    assert figures[0].get_suptitle().startswith(f"{variant}: ")
    assert len({axes.get_images()[0].get_clim() for axes in drawn}) == 1, "one scale"


def test_positions_are_drawn(
    path: Path, figures: list[Figure], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    out = path.with_name("positions.png")
    monkeypatch.setattr(sys, "argv", ["plots", "positions", str(path), str(out)])
    plots.main()
    assert capsys.readouterr().out == f"wrote {out}\n"
    assert_a_picture(out)
    images = [image for axes in figures[0].axes for image in axes.get_images()]
    bias = small().encoder.position_bias(12).bias.detach().numpy()  # (2, 12, 12)
    np.testing.assert_array_equal([image.get_array() for image in images], bias)
    assert {image.get_clim() for image in images} == {(-np.abs(bias).max(), np.abs(bias).max())}, "one scale"


def test_curves_are_drawn(tmp_path: Path, figures: list[Figure], monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, out = (tmp_path / name for name in ("one", "two", "curves.png"))
    for run in (one, two):
        log(run, "train_inner", {1: 9.0, 2: 7.0, 3: 6.0})
        log(run, "valid", {2: 7.5, 3: 6.5})
    monkeypatch.setattr(sys, "argv", ["plots", "curves", str(one), str(two), "-o", str(out)])
    plots.main()
    assert_a_picture(out)
    training, validation = [[1, 9], [2, 7], [3, 6]], [[2, 7.5], [3, 6.5]]
    lines = figures[0].axes[0].get_lines()
    assert [line.get_xydata().tolist() for line in lines] == [training, validation] * 2
    legend = [text.get_text() for text in figures[0].axes[0].get_legend().get_texts()]
    assert legend == ["one", "two"]


def test_runs_of_one_name_are_told_apart(tmp_path: Path, figures: list[Figure]) -> None:
    runs = [str(log(tmp_path / folder / "run", "valid", {1: 2.0})) for folder in ("a", "b")]
    plots.plot_curves(runs, str(tmp_path / "curves.png"))
    assert [text.get_text() for text in figures[0].axes[0].get_legend().get_texts()] == runs


def test_names_that_matplotlib_would_read_otherwise(tmp_path: Path, figures: list[Figure]) -> None:
    runs = [str(log(tmp_path / name, "valid", {1: 2.0})) for name in ("_hidden", "a$x_$")]
    plots.plot_curves(runs, str(tmp_path / "curves"))
    assert_a_picture(tmp_path / "curves")
    legend = [text.get_text() for text in figures[0].axes[0].get_legend().get_texts()]
    assert legend == ["./_hidden", r"a\$x_\$"]


def test_weights_that_are_no_numbers_are_not_drawn(tmp_path: Path) -> None:
    model = small()
    torch.nn.init.constant_(model.encoder.position_bias.absolute.query.weight, float("nan"))
    torch.save(checkpoint(model), tmp_path / "c.pt")
    with pytest.raises(ValueError, match="no finite numbers"):
        plots.plot_positions(str(tmp_path / "c.pt"), str(tmp_path / "out.png"))


def test_one_run(tmp_path: Path, figures: list[Figure]) -> None:
    run = log(log(tmp_path, "train_inner", {1: 9.0}), "valid", {1: 2.0})
    plots.plot_curves([str(run)], str(tmp_path / "curves.png"))
    legend = [text.get_text() for text in figures[0].axes[0].get_legend().get_texts()]
    assert legend == ["training", "validation"]


def test_the_unigram_level_is_drawn(tmp_path: Path, figures: list[Figure]) -> None:
    run = log(log(tmp_path, "train_inner", {1: 9.0, 2: 7.0}), "valid", {2: 7.5})
    plots.plot_curves([str(run)], str(tmp_path / "curves.png"), unigram_bits=8.25)
    assert_a_picture(tmp_path / "curves.png")
    axes = figures[0].axes[0]
    assert [line.get_ydata() for line in axes.get_lines()][2] == [8.25, 8.25]
    assert [text.get_text() for text in axes.texts] == ["entropy of single tokens: 8.25"]


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["positions", "none.pt", "out.png"], "no checkpoint none.pt"),
        (
            ["curves", "none", "-o", "out.png"],
            "no TensorBoard logs in none/tensorboard/valid; our training scripts",
        ),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["plots", *arguments])
    with pytest.raises(SystemExit) as exit:
        plots.main()
    assert isinstance(exit.value.code, str), "Python prints it and exits with status 1"
    assert exit.value.code.startswith(f"plots: {sentence}")
    assert "\n" not in exit.value.code
    assert list(tmp_path.iterdir()) == []
