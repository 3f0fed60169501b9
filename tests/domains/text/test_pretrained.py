"""A BERT of ``transformers`` from a folder: adopted, updated, saved, loaded."""

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import incontrast as ic
from incontrast.cli.app import app
from tests.domains.text.test_text import SENTENCES

transformers = pytest.importorskip("transformers")

UPDATE = ic.ICL(max_epochs=1, epoch_steps=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, two layers, a WordPiece vocabulary of the sentences' words and letters."""
    place = tmp_path_factory.mktemp("bert")
    words = sorted({word.strip(",?").lower() for text in SENTENCES for word in text.split()})
    letters = [
        f"{mark}{letter}" for letter in "abcdefghijklmnopqrstuvwxyz,?" for mark in ("", "##")
    ]
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *letters]
    vocabulary = {name: number for number, name in enumerate(dict.fromkeys(names))}
    transformers.BertTokenizer(vocab=vocabulary).save_pretrained(place)
    settings = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(
        vocab_size=len(vocabulary), intermediate_size=64, max_position_embeddings=40, **settings
    )
    torch.manual_seed(0)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(place)
    return place


def code(folder: Path) -> ic.ImportPath:
    return ic.pretrained(folder, pooling="mean")


def adopted(folder: Path, seen: list[str], **settings: Any) -> ic.Learner:
    domain = ic.Text(tokenizer=folder, length=38)
    return ic.Learner.from_encoder(code(folder), domain, seen=seen, **settings)


def test_its_embeddings_are_those_of_transformers(folder: Path) -> None:
    learner = adopted(folder, SENTENCES)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    inputs = tokenizer(SENTENCES[:9], return_tensors="pt", padding=True)
    with torch.no_grad():
        states = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"][:, :, None]
    expected = (states * mask).sum(1) / mask.sum(1)
    torch.testing.assert_close(learner.embed(SENTENCES[:9]), expected, rtol=1e-4, atol=1e-5)


def test_it_is_adopted_updated_saved_and_loaded(folder: Path, tmp_path: Path) -> None:
    learner = adopted(folder, SENTENCES[:150], strategy=UPDATE)
    before = learner.embed(SENTENCES)
    learner.update(SENTENCES[150:])
    assert not torch.equal(learner.embed(SENTENCES), before)
    learner.save(tmp_path / "model")
    again = ic.Learner.load(tmp_path / "model")  # it names no code but ours
    torch.testing.assert_close(again.embed(SENTENCES), learner.embed(SENTENCES))


def test_it_is_adopted_updated_and_served_by_a_workspace(folder: Path, tmp_path: Path) -> None:
    from starlette.testclient import TestClient

    from incontrast.serve.app import create_app
    from incontrast.serve.settings import ServeSettings

    domain = ic.Text(tokenizer=folder, encoder=code(folder), length=38)
    space = ic.Workspace.create(tmp_path / "space", ic.Learner(domain, strategy=UPDATE))
    space.adopt(SENTENCES[:150])
    space.update(SENTENCES[150:], force=True)
    assert ic.Workspace.open(tmp_path / "space").learner().version == 2
    app = create_app(ServeSettings(workspace=space.folder))
    with TestClient(app) as client:
        answer = client.post("/embed", json={"items": SENTENCES[:3]}).json()
    assert answer["version"] == 2
    expected = space.embed(SENTENCES[:3])
    torch.testing.assert_close(torch.tensor(answer["embeddings"]), expected, rtol=1e-4, atol=1e-5)


def test_it_is_adopted_from_the_command_line_with_its_own_tokenizer(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.txt").write_text("\n".join(SENTENCES[:150]))
    options = ["adopt", "old.txt", "-w", "space", "--encoder", str(folder)]
    shown = CliRunner().invoke(app, options)
    assert '--encoder-args \'{"pooling": "mean"}\'' in " ".join(shown.output.split())
    length = ["--set", "domain.length=38"]
    shown = CliRunner().invoke(app, [*options, "--encoder-args", '{"pooling": "mean"}', *length])
    assert "Version 1 is the current one" in shown.output, shown.output
    found = ic.Workspace.open("space").embed(SENTENCES[:9])
    torch.testing.assert_close(found, adopted(folder, SENTENCES[:150]).embed(SENTENCES[:9]))


def test_folders_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no config\.json: give a folder"):
        ic.Text(encoder=code(tmp_path)).encoder()


def test_large_steps_are_warned_of(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    learner = adopted(folder, SENTENCES)
    learner.update(SENTENCES[:8], strategy=ic.ICL.small_steps(max_epochs=1, epoch_steps=1))
    assert "large" not in caplog.text
    learner.update(SENTENCES[:8], strategy=UPDATE)
    assert "give strategy=ICL.small_steps(...)" in caplog.text
