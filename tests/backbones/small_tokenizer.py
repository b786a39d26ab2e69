"""A tokenizer that knows three words."""

from __future__ import annotations

import json


def small_tokenizer() -> bytes:
    """A tokenizer.json."""
    words = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "oil": 4, "rose": 5, "fell": 6}
    ends = [{"SpecialToken": {"id": name, "type_id": 0}} for name in ("[CLS]", "[SEP]")]
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": {  # as published ones have it: to a fixed length
            "strategy": {"Fixed": 9},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "[PAD]",
        },
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [ends[0], {"Sequence": {"id": "A", "type_id": 0}}, ends[1]],
            "pair": [],
            "special_tokens": {
                name: {"id": name, "ids": [number], "tokens": [name]}
                for name, number in words.items()
                if name in ("[CLS]", "[SEP]")
            },
        },
        "decoder": None,
        "model": {
            "type": "WordPiece",
            "vocab": words,
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
    }
    return json.dumps(content).encode()
