"""Models of transformers from a folder as encoders of images; those of texts are in domains."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from incontrast import ICL, Images, Learner, Workspace, pretrained

transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
SHORT = ICL(max_epochs=1)


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "vit"
    config = transformers.ViTConfig(
        **SMALL, intermediate_size=32, image_size=8, patch_size=4, num_channels=3
    )
    torch.manual_seed(0)
    transformers.ViTModel(config).save_pretrained(folder)
    return folder


def pixels(count: int, seed: int = 0) -> torch.Tensor:
    draws = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8, generator=draws)


@pytest.mark.parametrize("pooling", ["first", "mean", "max", "pooler"])
def test_a_vit_is_adopted_with_the_embeddings_it_has(vit, pooling: str) -> None:
    items, domain = pixels(20), Images(8)
    learner = Learner.from_encoder(pretrained(vit, pooling=pooling), domain, seen=items)
    model = transformers.ViTModel.from_pretrained(vit).eval()
    with torch.no_grad():
        output = model(pixel_values=domain.prepare(items))
    hidden = output.last_hidden_state
    expected = {
        "first": hidden[:, 0],
        "mean": hidden.mean(dim=1),
        "max": hidden.max(dim=1).values,
        "pooler": output.pooler_output,
    }
    torch.testing.assert_close(learner.embed(items), expected[pooling])


def test_weights_that_are_missing_are_refused_where_they_are_needed(vit, tmp_path, capfd) -> None:
    config = transformers.ViTConfig.from_pretrained(vit)
    transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "vit")
    capfd.readouterr()
    pretrained(tmp_path / "vit", pooling="mean")()
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ValueError, match=r"lack 2 of ViTModel, such as pooler\.dense\.bias"):
        pretrained(tmp_path / "vit", pooling="pooler")()


def test_a_vit_is_updated_saved_and_loaded_without_further_ado(vit, tmp_path) -> None:
    encoder = pretrained(vit, pooling="first")
    learner = Learner.from_encoder(encoder, Images(8), seen=pixels(24), strategy=SHORT)
    before = learner.embed(pixels(5))
    learner.update(pixels(12, seed=1))
    assert not torch.equal(learner.embed(pixels(5)), before)
    learner.save(tmp_path / "saved")
    again = Learner.load(tmp_path / "saved")  # it names no code but ours
    assert torch.equal(again.embed(pixels(5)), learner.embed(pixels(5)))
    workspace = Workspace.create(tmp_path / "space", Learner(Images(8, encoder=encoder)))
    workspace.adopt(pixels(24))
    assert torch.equal(Workspace.open(workspace.folder).learner().embed(pixels(5)), before)


def test_code_in_the_folder_of_a_model_is_not_run(vit, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # what transformers may ask
    folder, ran = shutil.copytree(vit, tmp_path / "vit"), tmp_path / "ran"
    config = json.loads((folder / "config.json").read_text())
    named = {"AutoConfig": "theirs.Config", "AutoModel": "theirs.Model"}
    told = config | {"model_type": "theirs", "auto_map": named}
    (folder / "config.json").write_text(json.dumps(told))
    (folder / "theirs.py").write_text(f"open({str(ran)!r}, 'w').close()")
    with pytest.raises(ValueError, match="trust_remote_code"):
        Images(8, encoder=pretrained(folder, pooling="mean")).encoder()
    assert not ran.exists()


def test_what_is_not_a_model_or_has_no_pooling_is_refused(vit, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"has no config\.json"):
        Images(8, encoder=pretrained(tmp_path, pooling="mean")).encoder()
    with pytest.raises(ValueError, match='pooling is one of "mean", "max", "first", "pooler"'):
        Images(8, encoder=pretrained(vit, pooling="sum")).encoder()
    broken = tmp_path / "broken"
    transformers.ViTConfig(**SMALL).save_pretrained(broken)
    with pytest.raises(ValueError, match="failed with"):
        Images(8, encoder=pretrained(broken, pooling="mean")).encoder()
