"""Hugging Face `run_glue.py`: the Trainer with `--resume_from_checkpoint`."""

import time
from dataclasses import dataclass, field

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


@dataclass
class ModelArguments:
    hidden_size: int = field(default=16)


class Slow(TrainerCallback):
    """As long as a step on a small GPU."""

    def on_step_end(self, args, state, control, **rest):
        time.sleep(0.08)


def main():
    parser = HfArgumentParser((ModelArguments, TrainingArguments))
    model_args, training_args = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)
    config = BertConfig(
        vocab_size=50,
        hidden_size=model_args.hidden_size,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    model = BertForSequenceClassification(config)
    rng = torch.Generator().manual_seed(1)
    train = [{"input_ids": torch.randint(0, 50, (8,), generator=rng), "labels": i % 2} for i in range(160)]
    trainer = Trainer(model, training_args, train_dataset=train, eval_dataset=train[:16], callbacks=[Slow()])
    train_result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    trainer.save_model()
    trainer.log_metrics("train", train_result.metrics)
    trainer.save_metrics("train", train_result.metrics)
    trainer.save_state()
    metrics = trainer.evaluate(eval_dataset=train[:16])
    trainer.log_metrics("eval", metrics)


if __name__ == "__main__":
    main()
