"""Networks of timm and transformers from a path: the features are those packages' own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_tokenizer import small_tokenizer

from ibpwf.backbones import load_timm, load_transformers
from ibpwf.backbones.backbone import ImageInput
from ibpwf.backbones.local import part_of
from ibpwf.errors import DataError, InputError
from zoos import imported


def test_a_network_of_timm_takes_weights_from_a_file(tmp_path: Path) -> None:
    timm = imported("timm")
    theirs = timm.create_model("resnet10t", num_classes=5).eval()
    save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    ours = load_timm("resnet10t", tmp_path / "weights.safetensors")
    pixels = torch.randint(256, (2, 3, 40, 40))
    x = ours.input(pixels, 64)
    with torch.no_grad():
        assert torch.allclose(ours.features(x), theirs.forward_head(theirs.forward_features(x), pre_logits=True))
    assert ours.width == 512
    assert isinstance(ours.input, ImageInput)
    assert ours.input.resize == theirs.default_cfg["interpolation"]
    with pytest.raises(DataError, match="these weights are not those of timm's 'resnet18'"):
        load_timm("resnet18", tmp_path / "weights.safetensors")
    with pytest.raises(InputError, match="timm has no network 'resnet10x'"):
        load_timm("resnet10x", tmp_path / "weights.safetensors")
    with pytest.raises(DataError, match="cannot read"):
        load_timm("resnet10t", tmp_path / "none.safetensors")


def test_a_text_network_of_transformers_is_read_from_its_folder(tmp_path: Path) -> None:
    transformers = imported("transformers")
    pytest.importorskip("tokenizers")
    sizes = {"vocab_size": 7, "hidden_size": 12, "intermediate_size": 24, "num_hidden_layers": 2}
    config = transformers.BertConfig(**sizes, num_attention_heads=3, max_position_embeddings=12)
    theirs = transformers.BertForSequenceClassification(config).eval()
    theirs.save_pretrained(tmp_path)
    with pytest.raises(DataError, match=r"has no tokenizer.json"):
        load_transformers(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(small_tokenizer())
    ours = load_transformers(tmp_path)
    ids = torch.tensor([[2, 4, 5, 3], [2, 4, 3, 0]])
    with torch.no_grad():
        hidden = theirs(input_ids=ids, attention_mask=(ids != 0).long(), output_hidden_states=True).hidden_states
    found = ours.encode(["oil rose", "oil"], [1, 2])
    by_hand = torch.stack([torch.cat([hidden[d][row, :n].mean(0) for d in (1, 2)]) for row, n in ((0, 4), (1, 3))])
    assert torch.allclose(found, by_hand, atol=1e-5)


def test_an_image_network_of_transformers_is_read_from_its_folder(tmp_path: Path) -> None:
    transformers = imported("transformers")
    sizes = {"hidden_size": 12, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    theirs = transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=16, patch_size=8)).eval()
    theirs.save_pretrained(tmp_path)
    recipe = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "resample": 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(recipe))
    ours = load_transformers(tmp_path)
    assert isinstance(ours.input, ImageInput)
    assert ours.input.resize == "bicubic"
    pixels = torch.randint(256, (2, 3, 16, 16))
    with torch.no_grad():
        hidden = theirs(pixel_values=(pixels / 255 - 0.5) / 0.5, output_hidden_states=True).hidden_states
    assert torch.allclose(ours.encode(pixels), hidden[2].mean(1), atol=1e-5)


def test_a_folder_without_weights_says_so(tmp_path: Path) -> None:
    imported("transformers")
    with pytest.raises(DataError, match=r"cannot read .*model.safetensors"):
        load_transformers(tmp_path)


def test_weights_that_are_not_all_there_are_refused(tmp_path: Path) -> None:
    transformers = imported("transformers")
    sizes = {"hidden_size": 12, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=16, patch_size=8)).save_pretrained(tmp_path)
    kept = load_file(tmp_path / "model.safetensors")
    kept.pop(next(name for name in kept if name.endswith("layernorm.weight")))
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match=r"has no '.*layernorm.weight' \(1 tensors are missing\)"):
        load_transformers(tmp_path)


def test_a_transformers_that_cannot_be_imported_is_said_in_one_sentence() -> None:
    class Broken:
        def __getattr__(self, name: str) -> None:
            raise ModuleNotFoundError(f"Could not import module '{name}'.\nAre this object's requirements there?")

    with pytest.raises(InputError, match=r"cannot import AutoModel here \(Could not .*\); mend what it needs"):
        part_of(Broken(), "AutoModel")
