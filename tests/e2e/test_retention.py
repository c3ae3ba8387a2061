"""`outlast delete`, `prune` and `du` in real processes."""

from __future__ import annotations

import json

from tests.support.home import Home


def test_a_run_is_listed_deleted_and_still_paid_for(home: Home) -> None:
    home.write("work.sh", "mkdir -p outputs; head -c 5000 /dev/zero > outputs/zeros\n")
    assert home.outlast("run", "--no-pull", "--", "bash", "work.sh").returncode == 0
    run = home.only_run()
    use = json.loads(home.outlast("du", "--json").stdout)
    assert (use["runs"][0]["run"], use["runs"][0]["kinds"]["outputs"]) == (run, 5000)
    assert f"{run} " in home.outlast("du").stdout
    cost = json.loads(home.outlast("cost", "--json").stdout)["total"]["cost_usd"]

    def released() -> bool:
        return json.loads(home.outlast("prune", "--older-than", "0.001s", "--dry-run", "--json").stdout)["runs"] == [
            run
        ]

    home.until(released, "the run to be over, with its machine deleted")
    assert "nothing to delete" in home.outlast("prune", "--older-than", "30d", "--yes").stdout
    answer = home.outlast("delete", run)
    assert answer.returncode == 2
    assert "repeat the command with --yes" in answer.stderr
    answer = home.outlast("delete", run, "--yes")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith("deleted 1 run, ")
    assert home.outlast("ps", "--all", "--json").stdout.strip() == "[]"
    assert home.outlast("show", run).returncode == 3
    again = json.loads(home.outlast("cost", "--json").stdout)
    assert again["total"]["cost_usd"] >= cost > 0
    assert run in {line["name"] for line in again["lines"]}


def test_wrong_arguments_name_the_option_and_the_next_step(home: Home) -> None:
    for argv, text in [
        (["prune", "--older-than", "soon"], "--older-than soon"),
        (["prune", "--older-than", "1d", "--keep-best", "2"], "--keep-best and --metric belong together"),
        (["prune", "--older-than", "1d", "--keep-best", "2", "--metric", "loss"], "--metric: invalid metric"),
        (["prune"], "--older-than"),
    ]:
        answer = home.outlast(*argv)
        assert (answer.returncode, text in answer.stderr) == (2, True), answer.stderr
    assert home.outlast("delete", "nothing-1").returncode == 3
