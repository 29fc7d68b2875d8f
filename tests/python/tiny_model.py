"""A folder with a tiny random model and a tokenizer that was trained on Python's manual."""

import torch
import transformers

VOCABULARY = 1200


def make(folder, chat=False):
    from pydoc_data.topics import topics

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<end>"], initial_alphabet=alphabet,
        show_progress=False)  # fmt: skip
    inner.train_from_iterator([topics[name] for name in sorted(topics)[:30]], trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<end>", pad_token="<end>"
    )
    if chat:
        tokenizer.chat_template = (
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
        )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=8192,
        tie_word_embeddings=False, pad_token_id=0, bos_token_id=None, eos_token_id=0)  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config)
    for weights in model.parameters():
        if weights.dim() > 1:
            weights.data.normal_(0, 0.3)
    model.save_pretrained(folder)
    return tokenizer, model.eval()
