"""The reader of TU Dortmund's files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from torch_geometric.datasets import TUDataset

import incontrast as ic
from incontrast.data import read_source, tu
from incontrast.domains.graphs.collection import GraphCollection
from incontrast.domains.graphs.domain import Graphs

# Two graphs: a path of three nodes with a loop and a repeated edge, then an edge and a lone node.
FILES = {
    "A": "1, 2\n2, 1\n2,3\n3,2\n2, 1\n3, 3\n6, 4\n4, 6\n",
    "graph_indicator": "1\n1\n1\n2\n2\n2",
    "graph_labels": "1\n-1\n",
    "node_labels": "5\n7\n5\n8\n5\n5\n",
    "node_attributes": "0.5, 1\n1.5, 2\n2.5, 3\n-1e-1, 4\n0, 5\n.5, 6",
}
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes the files above as the data set TOY; some may be other ones, or None to leave out."""

    def to(folder: str = ".", **changes: str | None) -> Path:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for kind, text in {**FILES, **changes}.items():
            if text is not None:
                (tmp_path / folder / f"TOY_{kind}.txt").write_text(text)
        return tmp_path

    return to


@pytest.mark.parametrize("folder", [".", "TOY", "TOY/raw"])
def test_reads_graphs_and_labels(write: Write, folder: str) -> None:
    data = tu(write(folder), "TOY")
    assert data.labels is not None
    assert data.labels.tolist() == [1, 0]
    assert data.labels.dtype == np.int64
    assert data.classes == ("-1", "1")
    batch = data.items.take(torch.tensor([0, 1]))
    assert batch.edge_index.tolist() == [[0, 1, 1, 2, 3, 5], [1, 0, 2, 1, 5, 3]]
    assert batch.ptr.tolist() == [0, 3, 6]
    assert batch.x.argmax(dim=1).tolist() == [0, 1, 0, 2, 0, 0]
    assert data.items.node_labels == ((5, 7, 8),)
    assert batch.x.shape == (6, 3)
    assert torch.equal(batch.x.sum(dim=1), torch.ones(6))


def test_attributes_come_before_labels(write: Write) -> None:
    items = tu(write(), "TOY", attributes=True).items
    assert items.x.shape == (6, 5)
    assert items.x[3].tolist() == pytest.approx([-0.1, 4, 0, 0, 1])


def test_several_columns_of_labels(write: Write) -> None:
    root = write(node_labels="1,0\n2,0\n1,3\n1,0\n1,0\n1,0")
    assert tu(root, "TOY").items.x[2].tolist() == [1, 0, 0, 1]


def test_degree_profiles_where_there_is_nothing_else(write: Write) -> None:
    x = tu(write(node_labels=None), "TOY").items.x
    assert x.tolist() == [
        [1, 2, 2, 2, 0],
        [2, 1, 1, 1, 0],
        [1, 2, 2, 2, 0],
        [1, 1, 1, 1, 0],
        [0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0],
    ]


def test_windows_line_ends(write: Write) -> None:
    root = write(**{kind: text.replace("\n", "\r\n") for kind, text in FILES.items()})
    assert tu(root, "TOY", attributes=True).items.edge_index.shape == (2, 6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"A": "1,2\n2,7\n"}, r"TOY_A.txt, line 2: nodes .* from 1 to 6, got an edge from 2 to 7"),
        ({"A": "0,1\n"}, "TOY_A.txt, line 1: nodes .* got an edge from 0 to 1"),
        (
            {"A": "1,2\n3,4\n"},
            "TOY_A.txt, line 2: an edge must stay within one graph, got one from node 3 of graph 1 "
            "to node 4 of graph 2",
        ),
        ({"A": "1,2\n2,1,3\n"}, "TOY_A.txt, line 2 must have 2 integers, got '2,1,3'"),
        ({"A": "1\n2\n"}, "TOY_A.txt, line 1 must have 2 integers, got '1'"),
        ({"A": "1,2\n\n2,1\n"}, "TOY_A.txt, line 2 must have 2 integers, got ''"),
        ({"A": "1,2\n2,x\n"}, "TOY_A.txt, line 2 must have 2 integers, got '2,x'"),
        ({"A": ""}, "TOY_A.txt is empty"),
        (
            {"graph_indicator": "1\n1.5\n"},
            "TOY_graph_indicator.txt, line 2 must have 1 integer, got '1.5'",
        ),
        (
            {"graph_indicator": "1\n1\n1\n2\n3\n3\n"},
            "TOY_graph_indicator.txt, line 5: graph 3 is none of the 2 graphs with a label",
        ),
        ({"graph_indicator": "0\n1\n"}, "line 1: graph 0 is none of the 2 graphs"),
        ({"graph_indicator": "1\n2\n1\n"}, "line 3: graph 1 follows a higher one"),
        ({"graph_indicator": "1\n1\n1\n1\n1\n1"}, "indicator.txt: graph 2 of 2 has no nodes"),
        ({"node_labels": "1\n2\n"}, "TOY_node_labels.txt must have a line for each of 6 nodes, g"),
        ({"node_attributes": "1\n2\n"}, "TOY_node_attributes.txt must have a line for each of 6"),
        (
            {"node_attributes": "1,2\n1,2\n1\n1,2\n1,2\n1,2"},
            "TOY_node_attributes.txt, line 3 must have 2 numbers, got '1'",
        ),
        (
            {"node_attributes": "1\n2\nnan\n4\n5\n6"},
            "TOY_node_attributes.txt, line 3: numbers must be finite",
        ),
        (
            {"node_attributes": "1\nabc"},
            "TOY_node_attributes.txt, line 2 must have 1 number, got 'abc'",
        ),
    ],
)
def test_what_is_wrong_is_named(write: Write, changes: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tu(write(**changes), "TOY", attributes=True)


def test_missing_files_are_named(write: Write) -> None:
    with pytest.raises(FileNotFoundError, match=r"no OTHER_A.txt in .*, nor in OTHER or OTHER/raw"):
        tu(write(), "OTHER")
    for kind in ("graph_labels", "graph_indicator"):
        root = write(kind, **{kind: None})
        with pytest.raises(FileNotFoundError, match=rf"there is no .*TOY_{kind}.txt"):
            tu(root / kind, "TOY")
    with pytest.raises(FileNotFoundError, match=r"there is no .*TOY_node_attributes.txt"):
        tu(write("bare", node_attributes=None) / "bare", "TOY", attributes=True)


def unpack(shared_data: Path, name: str, folder: Path) -> Path:
    archive = shared_data / "TU" / f"{name}.zip"
    if not archive.is_file():
        pytest.skip(f"there is no {archive}")
    (folder / name / "raw").mkdir(parents=True)
    with ZipFile(archive) as content:
        for file in content.namelist():
            if file.endswith(".txt"):
                (folder / name / "raw" / Path(file).name).write_bytes(content.read(file))
    return folder


def test_proteins(shared_data: Path, tmp_path: Path) -> None:
    root = unpack(shared_data, "PROTEINS", tmp_path)
    data = tu(root, "PROTEINS")
    assert np.bincount(data.labels).tolist() == [663, 450]
    assert data.items.x.shape == (43471, 3)
    assert data.items.edge_index.shape == (2, 2 * 81044)
    isolated = torch.bincount(data.items.take(torch.arange(1113)).edge_index[0], minlength=43471)
    assert int((isolated == 0).sum()) == 5
    # PyG's reader drops a last line that has no newline, so it is given one.
    for file in (root / "PROTEINS" / "raw").glob("*.txt"):
        file.write_text(file.read_text().rstrip() + "\n")
    expected = TUDataset(str(root), "PROTEINS")
    everything = torch.arange(1113)
    ours, theirs = data.items.take(everything), Graphs().collect(expected).take(everything)
    assert torch.equal(ours.x, theirs.x)
    assert torch.equal(ours.edge_index, theirs.edge_index)
    assert torch.equal(ours.ptr, theirs.ptr)
    assert data.labels.tolist() == [int(graph.y) for graph in expected]
    assert tu(root, "PROTEINS", attributes=True).items.features == 4


def test_reddit_binary(shared_data: Path, tmp_path: Path) -> None:
    data = tu(unpack(shared_data, "REDDIT-BINARY", tmp_path), "REDDIT-BINARY")
    assert np.bincount(data.labels).tolist() == [1000, 1000]
    assert data.items.x.shape == (859254, 5)
    assert data.items.edge_index.shape == (2, 2 * 995508)
    assert int((data.items.x[:, 0] == 0).sum()) == 21
    assert data.items.x[:, 0].sum() == 2 * 995508


def labelled_graphs(root: Path, labels: list[int], graphs: int = 6) -> Path:
    """A folder of triangles whose nodes have these labels, one after the other."""
    root.mkdir()
    edges = [(3 * g + a, 3 * g + b) for g in range(graphs) for a, b in ((1, 2), (2, 3), (3, 1))]
    texts = {
        "A": "\n".join(f"{a},{b}\n{b},{a}" for a, b in edges),
        "graph_indicator": "\n".join(str(node // 3 + 1) for node in range(3 * graphs)),
        "graph_labels": "\n".join("1" for _ in range(graphs)),
        "node_labels": "\n".join(str(labels[node % len(labels)]) for node in range(3 * graphs)),
    }
    for kind, text in texts.items():
        (root / f"WEEK_{kind}.txt").write_text(text)
    return root


class TestLabelsOfLaterData:
    """The first data decide which column a label has."""

    def test_a_label_keeps_its_column(self, tmp_path: Path) -> None:
        first = read_source(labelled_graphs(tmp_path / "1", [0, 1, 2, 5])).items
        later = read_source(labelled_graphs(tmp_path / "2", [1, 5])).items
        assert later.features == 2
        domain = Graphs().fit_statistics(Graphs().collect(first))
        assert domain.node_labels == ((0, 1, 2, 5),)
        collected = domain.collect(later)
        assert collected.x[:4].tolist() == [[0, 1, 0, 0], [0, 0, 0, 1]] * 2
        both = first.extend(later)
        assert torch.equal(both.x[18:], collected.x)
        assert domain.pack(collected, torch.arange(6)) == domain.pack(both, torch.arange(6, 12))

    def test_a_label_never_seen_is_refused(self, tmp_path: Path) -> None:
        first = read_source(labelled_graphs(tmp_path / "1", [0, 1])).items
        later = read_source(labelled_graphs(tmp_path / "2", [1, 7])).items
        domain = Graphs().fit_statistics(first)
        message = r"the label 7 of nodes was not among the labels of the first graphs, 0, 1: leave"
        with pytest.raises(ValueError, match=message):
            domain.collect(later)
        wide = Graphs(node_labels=((0, 1, 7),))
        assert wide.collect(first).features == wide.collect(later).features == 3

    def test_attributes_stay_in_front(self) -> None:
        edges = torch.empty(2, 0, dtype=torch.int32)
        ptr, none = torch.tensor([0, 2]), torch.tensor([0, 0])
        x = torch.tensor([[0.5, 1.0, 0.0], [0.25, 0.0, 1.0]])
        graphs = GraphCollection(x, edges, ptr, none, ((3, 4),))
        wider = graphs.with_labels(((4, 9, 3),))
        assert wider.x.tolist() == [[0.5, 0.0, 0.0, 1.0], [0.25, 1.0, 0.0, 0.0]]
        with pytest.raises(ValueError, match=r"nodes must have 2 columns of labels .* got 1"):
            graphs.with_labels(((3, 4), (1,)))

    def test_through_a_learner_and_a_workspace(self, tmp_path: Path) -> None:
        weeks = [
            labelled_graphs(tmp_path / "1", [0, 1, 2, 1]),
            labelled_graphs(tmp_path / "2", [1]),
        ]
        strange = labelled_graphs(tmp_path / "3", [4])

        def learner() -> ic.Learner:
            once: dict[str, Any] = {"max_epochs": 1}
            return ic.Learner(
                Graphs(hidden=4), fit_strategy=ic.Retrain(**once), strategy=ic.ICL(**once)
            )

        alone = learner()
        alone.fit(weeks[0])
        alone.update(weeks[1])
        assert alone.memory.items is not None
        ones = alone.memory.items.take(torch.arange(6, 12)).x
        assert ones.tolist() == [[0.0, 1.0, 0.0]] * 18
        alone.save(tmp_path / "saved")
        with pytest.raises(ValueError, match="the label 4 of nodes was not among"):
            ic.Learner.load(tmp_path / "saved").update(strange)
        space = ic.Workspace.create(tmp_path / "space", learner())
        space.fit(weeks[0], force=True)
        space.update(read_source(weeks[1]), force=True)
        kept = space.learner().memory.items
        assert kept is not None
        assert kept.take(torch.arange(6, 12)).x.tolist() == ones.tolist()
        with pytest.raises(ValueError, match="the label 4 of nodes was not among"):
            space.update(read_source(strange), force=True)
