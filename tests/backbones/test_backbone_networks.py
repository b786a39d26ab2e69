"""Our networks against other people's code for the same ones; with published weights where they are at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from small_tokenizer import small_tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

import ibpwf.backbones as backbones
from ibpwf.backbones.backbone import TextInput
from ibpwf.backbones.inverted_residuals import (
    EFFICIENTNET_LITE0,
    MOBILENET_V2,
    InvertedResidualNetwork,
    Plan,
    pad_same,
)
from ibpwf.backbones.residuals import RESNET_50, ResidualPlan, published_layers, read_published
from ibpwf.backbones.residuals import with_weights as residual_network
from ibpwf.backbones.sentence_encoder import EncoderSize, with_weights
from ibpwf.backbones.weights import read_tokenizer
from ibpwf.errors import DataError, InputError
from zoos import imported

THEIRS = {"tf_efficientnet_lite0": EFFICIENTNET_LITE0, "mobilenetv2_100": MOBILENET_V2}


def shaken(net: nn.Module) -> nn.Module:
    """Means and variances of batch normalization as they are after training: not 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    for name, buffer in net.named_buffers():
        if name.endswith("running_var"):
            buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
        elif name.endswith("running_mean"):
            buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))
    return net.eval()


@pytest.mark.parametrize("name", THEIRS)
def test_inverted_residuals_are_timms(name: str) -> None:
    theirs = shaken(imported("timm").create_model(name, num_classes=0))
    ours = InvertedResidualNetwork(THEIRS[name]).eval()
    ours.load_state_dict(dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=True)))
    x = torch.randn(2, 3, 71, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        *_, last = ours.stages(x)
        assert torch.allclose(last.mean((2, 3)), theirs(x), atol=1e-5)


@pytest.mark.parametrize("plan", THEIRS.values())
def test_each_depth_has_the_width_the_catalog_says(plan: Plan) -> None:
    with torch.no_grad():
        found = [stage.shape for stage in InvertedResidualNetwork(plan).eval().stages(torch.zeros(1, 3, 32, 32))]
    assert [tuple(shape[:2]) for shape in found] == [(1, width) for width in plan.widths]
    assert [shape[2] for shape in found] == [16, 8, 4, 2, 2, 1, 1, 1] == [shape[3] for shape in found]
    assert plan.widths in [known.widths for known in backbones.BACKBONES.values()]


@pytest.mark.parametrize(("size", "kernel", "before", "behind"), [(8, 3, 0, 1), (9, 3, 1, 1), (8, 5, 1, 2)])
def test_same_padding_is_tensorflows(size: int, kernel: int, before: int, behind: int) -> None:
    padded = pad_same(torch.ones(1, 1, size, size), kernel, 2)[0, 0]
    row = padded[size // 2].tolist()
    assert row == [0.0] * before + [1.0] * size + [0.0] * behind


NARROW = ResidualPlan(blocks=(2, 1), channels=4, classes=5)


def published_numbers(plan: ResidualPlan) -> np.ndarray:
    """Raw numbers for all layers, above 0: variances among them."""
    count = sum(int(np.prod(shape)) for shape in published_layers(plan).values())
    return (np.random.default_rng(0).random(count, dtype=np.float32) * 0.4 + 0.05).astype("<f4")


def as_keras(layers: dict[str, Tensor], plan: ResidualPlan, pixels: Tensor) -> Tensor:
    """What Keras' layers of these names make of red, green and blue pixels, one after another as its model says."""

    def layer(x: Tensor, name: str, stride: int = 1, padding: int = 0) -> Tensor:
        kernel = layers[f"{'conv1' if name == '_conv1' else 'res' + name}/kernel"].permute(3, 2, 0, 1)
        bias = layers[f"{'conv1' if name == '_conv1' else 'res' + name}/bias"]
        scale, shift, mean, variance = (
            layers[f"bn{name}/{part}"].view(-1, 1, 1) for part in ("gamma", "beta", "moving_mean", "moving_variance")
        )
        return (F.conv2d(x, kernel, bias, stride, padding) - mean) / (variance + 1e-3).sqrt() * scale + shift

    blue_first = pixels.flip(1) - torch.tensor([103.939, 116.779, 123.68]).view(3, 1, 1)
    x = F.max_pool2d(F.pad(F.relu(layer(F.pad(blue_first, (3,) * 4), "_conv1", 2)), (1,) * 4), 3, 2)
    for stage, blocks in enumerate(plan.blocks):
        for number in range(blocks):
            name, stride = f"{stage + 2}{'ab'[number]}_branch", 2 if stage and not number else 1
            inner = F.relu(layer(F.relu(layer(x, f"{name}2a", stride)), f"{name}2b", padding=1))
            beside = x if number else layer(x, f"{name}1", stride)
            x = F.relu(layer(inner, f"{name}2c") + beside)
    return x.mean((2, 3))


def test_residuals_are_what_keras_makes_of_the_published_numbers() -> None:
    raw = published_numbers(NARROW).tobytes()
    layers = read_published([raw[:1000], raw[1000:]], NARROW)
    pixels = 255 * torch.rand(2, 3, 33, 40, generator=torch.Generator().manual_seed(1))
    takes = backbones.ImageInput(224, (123.68, 116.779, 103.939), (1.0, 1.0, 1.0))
    with torch.no_grad():
        *_, last = residual_network(layers, NARROW).eval().stages(pixels - torch.tensor(takes.mean).view(3, 1, 1))
    torch.testing.assert_close(last.mean((2, 3)), as_keras(layers, NARROW, pixels), rtol=1e-4, atol=1e-4)
    with pytest.raises(DataError, match="which are not those of this network"):
        read_published([raw[4:]], NARROW)


def test_the_published_residual_network_is_as_large_as_its_files() -> None:
    known = backbones.BACKBONES["resnet-50"]
    layers = published_layers(RESNET_50)
    assert 4 * sum(int(np.prod(shape)) for shape in layers.values()) == known.size
    assert next(iter(layers)) == "bn2a_branch1/gamma"
    assert RESNET_50.widths == known.widths
    assert len(known.digest) == 64
    assert known.digest not in [file.digest for file in known.files]


SMALL = EncoderSize(vocabulary=50, positions=20, width=12, inner=24, heads=3, layers=2)


def test_the_sentence_encoder_is_bert_with_a_mean_over_the_words() -> None:
    transformers = imported("transformers")
    config = transformers.BertConfig(
        vocab_size=50,
        max_position_embeddings=20,
        hidden_size=12,
        intermediate_size=24,
        num_attention_heads=3,
        num_hidden_layers=2,
        layer_norm_eps=1e-12,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = transformers.BertModel(config).eval()
    ours = with_weights(theirs.state_dict(), SMALL).eval()
    ids = torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]])
    with torch.no_grad():
        first, last = ours.stages(ids.float())  # a learner's inputs are float32
        hidden = theirs(input_ids=ids, attention_mask=(ids != 0).long(), output_hidden_states=True).hidden_states
    by_hand = torch.stack([hidden[1][0].mean(0), hidden[1][1, :2].mean(0)])
    assert torch.allclose(first, by_hand, atol=1e-5)
    by_hand = torch.stack([hidden[2][0].mean(0), hidden[2][1, :2].mean(0)])
    assert torch.allclose(last, F.normalize(by_hand, dim=1), atol=1e-5)


def test_texts_become_word_pieces_with_zeros_behind() -> None:
    pytest.importorskip("tokenizers")
    read = TextInput(read_tokenizer("small", small_tokenizer()), longest=5)
    assert read(["oil rose", "oil"]).tolist() == [[2, 4, 5, 3], [2, 4, 3, 0]]
    assert read(["oil"], length=4).tolist() == [[2, 4, 3, 0]]
    assert read(["oil rose fell oil rose"]).tolist() == [[2, 4, 5, 6, 3]]  # a cut text still has an end
    for wrong in ("", "  ", None, 3):
        with pytest.raises(InputError, match=r"text 1 is .*; give words to read"):
            read(["oil", wrong])  # type: ignore[list-item]


def test_a_machine_without_tokenizers_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(InputError, match=r"run pip install 'ibpwf\[text\]'"):
        read_tokenizer("minilm-l6", b"{}")


def cached(name: str) -> backbones.Backbone:
    if not backbones.is_cached(name):
        pytest.skip(f"{name} is not in the cache; run ibpwf backbones fetch {name}")
    return backbones.load(name)


@pytest.mark.parametrize("name", ["efficientnet-lite0", "mobilenet-v2", "resnet-50"])
def test_published_image_networks_know_black_from_noise(name: str) -> None:
    found = cached(name)
    pixels = torch.stack([torch.zeros(3, 64, 64), 255 * torch.rand(3, 64, 64)])
    features = found.encode(pixels)
    assert features.shape == (2, backbones.BACKBONES[name].widths[-1])
    assert float((features[0] - features[1]).norm()) > 1


def test_the_published_sentence_encoder_puts_like_meanings_together() -> None:
    found = cached("minilm-l6")
    texts = ["A man is eating food.", "A man is eating a piece of bread.", "Two planets circle the star."]
    features = found.encode(texts)
    assert features.shape == (3, 384)
    assert torch.allclose(features.norm(dim=1), torch.ones(3), atol=1e-5)
    alike = features @ features.T
    assert float(alike[0, 1]) > 0.5 > 0.2 > float(alike[0, 2])


def test_the_published_sentence_encoder_is_transformers(tmp_path: Path) -> None:
    found = cached("minilm-l6")
    transformers = imported("transformers")
    from ibpwf.backbones.loading import folder_of

    config = transformers.BertConfig(
        hidden_size=384, intermediate_size=1536, num_attention_heads=12, num_hidden_layers=6, layer_norm_eps=1e-12
    )
    from safetensors.torch import load_file

    theirs = transformers.BertModel(config).eval()
    theirs.load_state_dict(load_file(folder_of("minilm-l6") / "model.safetensors"), strict=False)
    texts = ["Grain exports fell.", "A longer text, with a comma, about nothing in particular."]
    assert isinstance(found.input, TextInput)
    ids = found.input(texts)
    mask = ids != 0
    with torch.no_grad():
        hidden = theirs(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    mean = (hidden * mask.unsqueeze(2)).sum(1) / mask.sum(1, keepdim=True)
    assert torch.allclose(found.encode(texts), F.normalize(mean, dim=1), atol=1e-5)
