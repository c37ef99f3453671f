"""Train a small BERT classifier with transformers' Trainer: is a line of Python's documentation code or prose?"""

from pydoc_data.topics import topics  # text that ships with Python

from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

LENGTH = 64

lines = [line for text in topics.values() for line in text.splitlines() if line.strip()][:256]
data = []
for line in lines:
    text = line.strip().encode("ascii", "replace")[:LENGTH]
    data.append(
        {
            "input_ids": list(text.ljust(LENGTH, b"\0")),
            "attention_mask": [1] * len(text) + [0] * (LENGTH - len(text)),
            "labels": int(line.startswith("   ")),  # code is indented
        }
    )

config = BertConfig(
    vocab_size=128,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=LENGTH,
)
arguments = TrainingArguments(
    "build/bert",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=4,
    learning_rate=1e-3,
    num_train_epochs=1,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
)
trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=data)
trainer.train()
