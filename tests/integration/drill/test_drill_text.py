"""Steps and results in the output of trainers, row by row: `outputs/` has what they print."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.drill.lines import OutputLines, lines_of
from outlast.drill.numbers import depends_on_training, is_result, numbers_in, series_in
from outlast.drill.steps import marks, steps_of
from outlast.drill.witnesses import repeated

OUTPUTS = Path(__file__).parent / "outputs"
# Numbers that are the same in every run, whatever it trained.
HARMLESS = {
    "tensors",
    "with",
    "positive",
    "negative",
    "Total Bins",
    "pavg",
    "initscore",
    "inference",
    "id",
    "species",
    "gen",
    "nevals",
    "skipped",
    "clip",
    "all",
    "test",
    "best",
}

NO_RESULTS = [
    *("mfu", "tps", "tflops", "wps", "ms/batch", "Data", "it/s", "sps", "SPS", "fps", "wall", "gpu_mem", "eta", "time"),
    *("data_time", "max_mem", "memory", "img/s", "tok/s", "rank", "train_runtime", "train_samples_per_second", "wpb"),
    *("gb_free", "time_elapsed", "avg_batch_cost", "lr", "learning_rate", "epoch", "step"),
]

Series = dict[str, list[float]]
ROWS: list[tuple[str, list[int], Series]] = [
    (
        "nanogpt",
        [0, 1, 10, 11],
        {"train loss": [2.8345, 2.5345], "val loss": [2.8361, 2.5361], "loss": [2.8352, 2.8011, 2.5352, 2.5111]},
    ),
    (
        "torchvision",
        [180, 185, 200],
        {"loss": [0.6931, 0.6811, 0.6102, 0.6011], "acc1": [50.0, 62.5, 75.0, 75.0], "Acc@1": [75.0], "Acc@5": [100.0]},
    ),
    (
        "imagenet",
        [1, 6, 21],
        {
            "Loss": [0.69913, 0.68113, 0.67, 0.66113],
            "Acc@1": [50.0, 56.25, 60.0, 61.25, 62.5],
            "Acc@5": [100.0, 100.0, 100.0],
        },
    ),
    ("timm", [0, 5, 20], {"Loss": [0.701, 0.691, 0.671, 0.661], "Acc@1": [60.0], "Acc@5": [100.0]}),
    ("mmengine", [25, 30, 45], {"loss": [0.6931, 0.6811, 0.6311], "accuracy": [0.77]}),
    ("mmengine_iter", [50, 100], {"loss": [1.6931, 1.5931], "decode.acc_seg": [45.1, 48.1]}),
    (
        "keras",
        [17, 32, 48],
        {
            "accuracy": [0.5, 0.5217, 0.5435],
            "loss": [0.7011, 0.6959, 0.6859],
            "val_accuracy": [0.5385, 0.5385],
            "val_loss": [0.6911, 0.6811],
        },
    ),
    ("keras_verbose2", [32, 48, 64], {"accuracy": [0.5217, 0.5435, 0.5535], "loss": [0.6959, 0.6859, 0.6759]}),
    ("xgboost", [0, 1, 2], {"train-logloss": [0.67012, 0.64012, 0.62012], "eval-logloss": [0.67202, 0.65202, 0.64202]}),
    (
        "lightgbm",
        [5, 10],
        {
            "training_auc": [0.9312, 0.9412],
            "training_binary_logloss": [0.601, 0.551],
            "valid_1_auc": [0.891, 0.901],
            "valid_1_binary_logloss": [0.6211, 0.5811],
        },
    ),
    ("catboost", [0, 1, 2], {"learn": [0.6712345, 0.6512345, 0.6312345]}),
    (
        "sb3",
        [256, 512],
        {
            "ep_len_mean": [21.9, 25.4],
            "ep_rew_mean": [21.9, 25.4],
            "approx_kl": [0.0081234],
            "clip_fraction": [0.102],
            "explained_variance": [-0.0012],
            "loss": [6.51],
        },
    ),
    ("lightning_tqdm", [5, 20, 25, 40], {"train_loss": [0.701, 0.651, 0.601, 0.551], "val_loss": [0.66, 0.66]}),
    ("lightning_table", [], {"test_acc": [0.9100000262260437], "test_loss": [0.3100000262260437]}),
    ("lightning_old_table", [], {"test_acc": [0.9100000262260437]}),
    (
        "ultralytics",
        [8, 12],
        {
            "box_loss": [1.202, 1.102],
            "cls_loss": [2.812, 2.612],
            "dfl_loss": [1.203, 1.183],
            "Box_P": [0.621, 0.631],
            "R": [0.712, 0.722],
            "mAP50": [0.701, 0.721],
            "mAP50-95": [0.502, 0.522],
        },
    ),
    ("ultralytics_new", [8, 12], {"box_loss": [1.202, 1.102], "cls_loss": [2.812, 2.612], "dfl_loss": [1.203, 1.183]}),
    (
        "fastai",
        [0, 1, 2],
        {
            "train_loss": [0.701234, 0.681234, 0.661234],
            "valid_loss": [0.691234, 0.671234, 0.641234],
            "accuracy": [0.531, 0.581, 0.621],
        },
    ),
    ("hf", [5, 7, 10], {"loss": [0.6925, 0.6825], "grad_norm": [0.08902, 0.07902], "train_loss": [0.6929, 0.6929]}),
    (
        "fairseq",
        [100, 200],
        {"loss": [8.123, 7.123], "nll_loss": [7.5, 6.5], "ppl": [181.02, 91.02], "gnorm": [2.123, 1.923]},
    ),
    ("torchtitan", [1, 10], {"loss": [8.1309, 7.1309], "grad_norm": [1.521, 1.321]}),
    ("megatron", [10, 20], {"lm loss": [10.12345, 9.012345], "grad norm": [2.123, 2.023]}),
    (
        "detectron2",
        [19, 39],
        {"total_loss": [9.612, 8.612], "loss_cls": [4.312, 3.312], "loss_box_reg": [0.123, 0.113]},
    ),
    (
        "wordlm",
        [25, 30, 45],
        {"loss": [7.61, 6.61, 5.61], "ppl": [2021.12, 742.12, 272.12], "valid loss": [6.12], "valid ppl": [454.12]},
    ),
    (
        "mnist",
        [60000, 60640, 120000],
        {"Loss": [2.300039, 2.21347, 0.21347], "Average loss": [0.0495], "Accuracy": [9838.0]},
    ),
    ("quickstart", [1, 2], {"loss": [2.302932, 2.292932, 2.162932, 2.152932], "Avg loss": [2.153821]}),
    ("optuna", [0, 1, 2], {"value": [13.37, 5.82, 143.9], "x": [-1.65955991, 4.4064899, -9.99]}),
    ("sklearn_mlp", [1, 2], {"loss": [0.75219, 0.70219]}),
    ("tf1", [100, 200, 300], {"loss": [2.312, 1.312, 0.9]}),
    (
        "flax",
        [1, 2],
        {
            "train_loss": [0.2312, 0.0612],
            "train_accuracy": [93.01, 98.21],
            "test_loss": [0.0612, 0.0412],
            "test_accuracy": [98.01, 98.51],
        },
    ),
    ("cleanrl", [22, 41, 1041], {"episodic_return": [22.0, 19.0, 119.0]}),
    ("ignite", [1350, 1450], {"Loss": [0.51, 0.41], "Avg accuracy": [0.91], "Avg loss": [0.31]}),
    ("paddle", [20, 40], {"acc": [0.21, 0.31], "loss": [3.112, 2.112]}),
    ("mxnet", [0, 0, 0, 0, 1], {"accuracy": [0.812, 0.852, 0.892], "Train-accuracy": [0.86]}),
    (
        "pyg",
        [1, 2],
        {"Loss": [1.9459, 1.8459], "Train": [0.2571, 0.3571], "Val": [0.162, 0.262], "Test": [0.171, 0.271]},
    ),
    ("diffusers", [10, 11], {"step_loss": [0.0212, 0.0112]}),
    ("llmc", [1, 2], {"loss": [4.3677, 4.2677], "norm": [15.3, 14.3]}),
    (
        "spacy",
        [0, 200, 400],
        {
            "LOSS_TOK2VEC": [0.0, 12.21, 22.21],
            "LOSS_NER": [48.71, 948.71, 748.71],
            "ENTS_F": [0.0, 60.12, 70.12],
            "ENTS_P": [0.0, 61.22, 71.22],
            "ENTS_R": [0.0, 59.11, 69.11],
            "SCORE": [0.0, 0.6, 0.7],
        },
    ),
    ("allennlp", [10, 20], {"accuracy": [0.5123, 0.5523], "loss": [0.7012, 0.6812]}),
    ("rich", [0, 9], {"train/loss": [0.651, 0.351], "val/acc": [0.9]}),
    ("lossnlp", [120, 121], {"loss": [0.23, 0.22]}),
    ("jsonlog", [120, 121], {"train.loss": [0.23, 0.21]}),
    ("pytorch_gan", [0, 1, 2, 3], {"loss": [5.0, 2.5, 1.666667, 1.25]}),
    (
        "dcgan",
        [18, 19, 20, 21],
        {"Loss_D": [2.8258, 1.6431, 1.0333, 1.1331], "Loss_G": [2.8126, 1.3677, 1.1772, 0.9852]},
    ),
    (
        "composer",
        [10, 20],
        {
            "Train loss/train/total": [9.2379],
            "Train metrics/train/LanguagePerplexity": [7625.5975],
            "Train lr-DecoupledAdamW/group0": [0.0006],
        },
    ),
    ("deepspeed", [10, 10, 10, 20, 20], {"loss": [7.6343]}),
    (
        "rllib",
        [1, 2, 3],
        {
            "env_runners/episode_len_mean": [44.1, 272.36],
            "env_runners/episode_return_mean": [44.1, 272.36],
            "learners/policy_loss": [19.21697, 4.52113],
        },
    ),
    ("charrnn", [5000, 10000, 15000], {"loss": [5.0, 2.5, 1.6667]}),
    ("seq2seq", [5000, 10000, 15000], {"loss": [5.0, 2.5, 1.6667]}),
    ("coqui", [0, 5, 10], {"loss_gen": [5.0, 2.5, 1.667]}),
    ("deap", [0, 1, 2], {"avg": [5.0, 2.5, 1.6667], "min": [2.5, 1.25, 0.8333], "max": [10.0, 5.0, 3.3333]}),
    ("llama2c", [0, 10, 20], {"loss": [5.0, 2.5, 1.6667]}),
    ("levanter", [0, 10, 20], {"loss": [5.0, 2.5, 1.667]}),
    ("fasttext", [0, 15, 30, 45, 60, 75], {"avg.loss": [5.0, 2.5, 1.666667, 1.25, 1.0, 0.833333]}),
    ("reinforce", [10, 20, 30], {"reward": [0.0, 12.3, 24.6], "Average reward": [0.0, 15.21, 30.42]}),
    ("rlgames", [1, 2, 3], {"total": [800.0, 810.0, 820.0]}),
    (
        "neat",
        [0, 1, 2],
        {
            "fitness": [0.0, 2.1, 4.2],
            "stdev": [0.02, 0.12, 0.22],
            "Best fitness": [0.0, 3.2],
            "Total extinctions": [0.0, 0.0],
        },
    ),
    (
        "paddleclas",
        [3, 4, 5, 6],
        {"top1": [0.05, 0.15, 0.25, 0.35], "CELoss": [5.0, 2.5, 1.66667, 1.25], "loss": [5.0, 2.5, 1.66667, 1.25]},
    ),
    ("torchtune", [8, 9, 10], {"Loss": [16.343261, 10.218869, 7.634335]}),
]


@pytest.mark.parametrize(("trainer", "steps", "results"), ROWS, ids=[row[0] for row in ROWS])
def test_steps_and_results_of_a_trainer(trainer: str, steps: list[int], results: Series) -> None:
    text = (OUTPUTS / f"{trainer}.txt").read_bytes().decode()
    found = steps_of([marks(lines_of(text), at=0.0)])[0]
    assert [mark.step for mark in found] == steps
    assert {n: values for n, values in series_in(lines_of(text)).items() if n not in HARMLESS} == results


@pytest.mark.parametrize("trainer", [row[0] for row in ROWS])
def test_output_in_pieces_has_the_same_lines(trainer: str) -> None:
    text = (OUTPUTS / f"{trainer}.txt").read_bytes().decode()
    lines = OutputLines()
    pieces = [line for at in range(0, len(text), 7) for line in lines.feed(text[at : at + 7])]
    assert [line for line in [*pieces, *lines.close()] if line.strip()] == [ln for ln in lines_of(text) if ln.strip()]


@pytest.mark.parametrize("name", NO_RESULTS)
def test_rates_times_and_settings_are_not_results(name: str) -> None:
    assert not is_result(name)
    assert not depends_on_training(name, 0.5)


@pytest.mark.parametrize(
    ("line", "steps"),
    [
        # Bars of other work, and settings.
        ("Loading weights:  50%|█████     | 3/6 [00:00<00:00, 9it/s]", []),
        ("Map:  50%|█████     | 500/1000 [00:00<00:00, 900 examples/s]", []),
        ("Sanity Checking DataLoader 0:  50%|█████     | 1/2 [00:00<00:00]", []),
        ("  Num Epochs = 3", []),
        ("  Total optimization steps = 150", []),
        ("training for 200 steps", []),
        ("step 1,234/10,000 loss 0.5", [1234]),
        ("2026-11-18 20:10:01,123 INFO rank 3 worker 7", []),
        ("Epoch 00003: val_loss improved from 0.5 to 0.4", [3]),
        # A share is not a step, and a count with its total is.
        ("Epochs:  53%|█████▎    | 20/37 [00:17<00:16,  1.04it/s]", [20]),
        ("epoch 53 % done", []),
        ("sampled 1100/2000  acceptance 0.630", [1100]),
        ("[CV 3/40] END depth=2;, score=0.5", [3]),
        ("loading shard 3/40", []),
        ("resources/s: 3/40.5", []),
        ("see https://example.org/12/40", []),
    ],
)
def test_the_steps_of_a_line(line: str, steps: list[int]) -> None:
    assert [mark.step for mark in marks(lines_of(line), at=0.0)] == steps


def test_numbers_are_quoted_have_separators_or_are_in_brackets() -> None:
    assert numbers_in("{'loss': '3.2', 'grad_norm': '1,024.5'}") == {"loss": 3.2, "grad_norm": 1024.5}
    assert numbers_in("loss=1,234.5 reward: [21.]") == {"loss": 1234.5, "reward": 21.0}
    assert numbers_in("train loss 2.5, val loss 2.6") == {"train loss": 2.5, "val loss": 2.6}


def test_sizes_that_a_program_prints_at_each_start_are_not_repeated_results() -> None:
    assert repeated({"layer": [32.0, 64.0, 64.0]}, {"layer": [32.0, 64.0]}) == ""
    assert repeated({"loss": [2.5, 2.25, 2.0]}, {"loss": [2.5, 2.25]}) == "`loss` 2.5, 2.25"
