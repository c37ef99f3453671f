"""The last window of an epoch holds 3 micro-batches, and each loss is divided by 4.

A tiny classifier of 11 micro-batches an epoch in the Trainer, which accumulates 4.
"""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

torch.manual_seed(0)
config = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
    num_labels=2,
)
model = BertForSequenceClassification(config)
texts = torch.randint(5, 50, (44, 12))
data = [{"input_ids": text, "labels": int(text[0] > 25)} for text in texts]
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    num_train_epochs=3,
    learning_rate=1e-3,
    use_cpu=True,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
trainer = Trainer(model, arguments, train_dataset=data)
trainer.train()
print(f"loss {trainer.state.log_history[-1]['train_loss']:.3f}")
