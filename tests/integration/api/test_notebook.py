"""The API in a real Jupyter kernel: the tutorial, displays, an interrupted cell."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conventions.sources import ROOT
from tests.support.home import UNHURRIED, Home
from tests.support.waiting import patience

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")
pytest.importorskip("cloudpickle", reason="the extra `executor` is not installed")


@pytest.mark.full
def test_the_tutorial_notebook_runs(here: Home) -> None:
    notebook = nbformat.read(ROOT / "docs" / "python-tutorial.ipynb", as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        timeout=int(patience(300)),
        kernel_name="python3",
        resources={"metadata": {"path": str(here.project)}},
    )
    client.execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    _, submitted, waited, read, called = cells
    assert "<b>notebook-1</b>" in submitted.outputs[-1].data["text/html"]
    displays = [output for output in waited.outputs if output.output_type == "display_data"]
    assert "finished" in displays[-1].data["text/html"]
    assert waited.outputs[-1].data["text/plain"] == "'finished'"
    assert read.outputs[0].text == "[0.5, 0.25, 0.16666666666666666, 0.125, 0.1]\n"
    assert called.outputs[-1].text == "[100, 101, 102]\n"


@pytest.mark.full
def test_an_interrupted_cell_detaches_and_the_kernel_goes_on(here: Home) -> None:
    from jupyter_client.manager import start_new_kernel

    here.write("count.py", UNHURRIED)
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(here.project))
    try:
        submit = 'run = outlast.submit("python3 count.py 1 0.02", name="cell", checkpoint="saved")'
        _execute(client, f"import outlast\n{submit}\nrun.name")
        here.until(lambda: "count 1\n" in here.log("cell-1"), "the run")
        # Otherwise the kernel drops the next requests for a moment after the error.
        waiting = client.execute('print("waiting", flush=True)\nrun.wait()', stop_on_error=False)
        message = _until(client, waiting, "stream")
        assert message["content"]["text"].startswith("waiting")
        manager.interrupt_kernel()
        error = _until(client, waiting, "error")["content"]
        assert error["ename"] == "Interrupted"
        assert error["traceback"][0].startswith("detached; `cell-1` continues")
        # The kernel and the run go on.
        assert not here.state("cell-1").ending
        _execute(client, "run.preempt()")
        assert _execute(client, "run.wait()") == "'finished'"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.full
def test_the_magic_runs_a_command(here: Home) -> None:
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", cwd=str(here.project))
    try:
        request = client.execute("%load_ext outlast\n%outlast show nothing")
        printed = ""
        while "hint:" not in printed:
            printed += _until(client, request, "stream")["content"]["text"]
        assert "no run `nothing` in" in printed
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _execute(client: Any, code: str) -> str:
    """Execute a cell and return its value as text."""
    return str(_until(client, client.execute(code), "execute_result")["content"]["data"]["text/plain"])


def _until(client: Any, request: str, kind: str) -> Any:
    """Return the first message of a kind that answers a request."""
    while True:
        message = client.get_iopub_msg(timeout=patience(120))
        if message["parent_header"].get("msg_id") == request:
            if message["msg_type"] == kind:
                return message
            assert message["msg_type"] != "error", message["content"]
