"""Makes small chat models with random weights, so that an engine does all of its work and nothing is downloaded.

    python models.py FOLDER

FOLDER gets a Qwen2 model per entry of SIZES, all with one tokenizer: a byte-level BPE trained on the standard library.
The same Python makes the same files. Runs under the engine's Python, beside its torch and transformers.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Only the engine's Python has these.
import torch  # type: ignore[import-not-found,unused-ignore]
from tokenizers import (  # type: ignore[import-not-found,unused-ignore]
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)
from transformers import (  # type: ignore[import-not-found,unused-ignore]
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

SEED = 0
CONTEXT = 32768
VOCABULARY = 4096
CORPUS_FILES = 120
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# As in Qwen tokens but not special: they stay in the text, where the engine's parser of tool calls looks for them.
MARKERS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]


@dataclass(frozen=True)
class Size:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int


SIZES = {
    "tiny": Size(hidden=128, layers=2, heads=4, kv_heads=2, mlp=512),  # 1.5 M parameters
    "small": Size(hidden=256, layers=4, heads=4, kv_heads=2, mlp=1024),  # 6 M
    "mid": Size(hidden=512, layers=8, heads=8, kv_heads=2, mlp=2048),  # 35 M
}

# ChatML with tools as Qwen writes them. Append-only: a longer conversation starts with the text of the shorter one.
CHAT_TEMPLATE = r"""
{%- macro turn(role, text) %}{{ '<|im_start|>' + role + '\n' + text + '<|im_end|>\n' }}{% endmacro %}
{%- macro calls(message) %}
    {%- if message.content %}{{ message.content }}{% endif %}
    {%- for call in message.tool_calls or [] %}
        {%- set function = call.function or call %}
        {%- if message.content or not loop.first %}{{ '\n' }}{% endif %}
        {{- '<tool_call>\n{"name": "' + function.name + '", "arguments": ' }}
        {{- function.arguments if function.arguments is string else function.arguments | tojson }}
        {{- '}\n</tool_call>' }}
    {%- endfor %}
{%- endmacro %}
{%- macro offer() %}
    {{- '# Tools\n\nFunctions that may be called, as JSON between <tools> and </tools>:\n<tools>\n' }}
    {%- for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}
    {{- '</tools>\n\nA call is a JSON object with name and arguments between <tool_call> and </tool_call>.' }}
{%- endmacro %}
{%- set has_system = messages[0].role == 'system' %}
{%- set system = messages[0].content if has_system else '' %}
{%- if tools %}{{ turn('system', (system + '\n\n' if system else '') + offer()) }}
{%- elif has_system %}{{ turn('system', system) }}
{%- endif %}
{%- for message in (messages[1:] if has_system else messages) %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
    {%- elif message.role == 'assistant' %}{{ turn('assistant', calls(message)) }}
    {%- else %}{{ turn(message.role, message.content) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""


def corpus() -> Iterator[str]:
    """Texts with single blanks: under a grammar for JSON a random model would wander off in tokens of many blanks."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    for file in files[:CORPUS_FILES]:
        yield re.sub(r"\s+", " ", file.read_text(encoding="utf-8", errors="ignore"))


def make_tokenizer() -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKERS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL,
        show_progress=False,
    )
    bpe.train_from_iterator(corpus(), trainer)
    bpe.add_tokens(MARKERS)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        model_max_length=CONTEXT,
        chat_template=CHAT_TEMPLATE,
    )


def make_model(size: Size, tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    torch.manual_seed(SEED)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=size.hidden,
        intermediate_size=size.mlp,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config).to(torch.bfloat16)


def main(folder: Path) -> None:
    tokenizer = make_tokenizer()
    for name, size in SIZES.items():
        model = make_model(size, tokenizer)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        print(f"model {name}: {model.num_parameters() / 1e6:.1f} M parameters", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
