"""The snippets of docs/frameworks.md run unchanged on a laptop."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "frameworks.md"
SNIPPETS = {
    section.splitlines()[0]: re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
}
# Definitions that the snippets leave to the reader.
YOURS = {
    "Lightning": "import lightning, torch\n"
    "class Module(lightning.LightningModule):\n"
    "    def __init__(self):\n        super().__init__()\n        self.net = torch.nn.Linear(6, 1)\n"
    "    def training_step(self, batch, index):\n        return self.net(batch[0]).square().mean()\n"
    "    def configure_optimizers(self):\n        return torch.optim.SGD(self.parameters(), lr=0.1)\n"
    "module, dataset = Module(), torch.utils.data.TensorDataset(torch.randn(64, 6))\n",
    "Hugging Face Trainer": "import transformers\n"
    "model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=9, hidden_size=4,\n"
    "    num_hidden_layers=1, num_attention_heads=1, intermediate_size=4, max_position_embeddings=4))\n"
    "dataset = [{'input_ids': [1, 2, 3], 'labels': i % 2} for i in range(8)]\n",
}


@pytest.mark.parametrize("name", SNIPPETS)
def test_the_snippet_runs_to_its_end(name: str, tmp_path: Path) -> None:
    text = YOURS.get(name, "") + SNIPPETS[name]
    for package in re.findall(r"integrations\.(\w+)", text):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: make frameworks")
    script = tmp_path / "snippet.py"
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / ".outlast-local" / "done.json").exists()
