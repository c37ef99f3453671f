"""A small BERT reads the pixels of a digit as 64 tokens, and names the digit. In the Trainer of transformers."""

import tempfile

import torch
from sklearn.datasets import load_digits
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

set_seed(0)
digits = load_digits()
pixels = torch.from_numpy(digits.data).long()  # 0 to 16
data = [{"input_ids": x, "labels": y} for x, y in zip(pixels, digits.target, strict=True)][:300]

config = BertConfig(
    vocab_size=17,
    num_labels=10,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=64,
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=4,
        num_train_epochs=1,
        learning_rate=1e-3,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=data)
    trainer.train()
