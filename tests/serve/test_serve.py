"""The service: what it answers, what it refuses, and the swap of versions under load."""

from __future__ import annotations

import asyncio
import base64
import gc
import io
import json
import shutil
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send
from torch import Tensor

from incontrast import Graphs, Images, Learner, Text, Vectors, Workspace
from incontrast.compat import Chain, MigratingIndex
from incontrast.domains.base import Domain
from incontrast.serve.app import _guarded, create_app
from incontrast.serve.batching import Batcher, QueueFull
from incontrast.serve.body import NPY, read_batches, read_npy, write_npy
from incontrast.serve.current import Current, Version
from incontrast.serve.metrics import Metrics
from incontrast.serve.settings import ServeSettings
from incontrast.workspace import WorkspaceError
from incontrast.workspace.files import write_json
from tests.serve.service import client_of, detail, server_of, wait_for


class TestEmbed:
    def test_json_and_npy_give_what_the_version_gives(self, space: Workspace, blobs) -> None:
        rows = blobs(5, seed=3)
        expected = space.embed(rows).numpy()
        with client_of(space) as client:
            answer = client.post("/embed", json={"items": rows.tolist()})
            told = answer.json()
            np.testing.assert_allclose(told.pop("embeddings"), expected, rtol=1e-4, atol=1e-5)
            encoder = space.encoder_hash(2)
            assert told == {"version": 2, "encoder": encoder, "space": 2, "space_encoder": encoder}
            headers = {"content-type": NPY, "accept": NPY}
            answer = client.post("/embed", content=write_npy(rows.numpy()), headers=headers)
            found = np.load(io.BytesIO(answer.content))
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
            assert answer.headers["x-incontrast-version"] == "2"
            assert answer.headers["x-incontrast-encoder"] == encoder

    def test_the_space_of_another_version(self, space: Workspace, blobs) -> None:
        rows = blobs(5, seed=3)
        with client_of(space) as client:
            told = client.post("/embed?space=1", json={"items": rows.tolist()}).json()
            assert (told["version"], told["space"]) == (2, 1)
            assert told["space_encoder"] == space.encoder_hash(1)
            expected = space.embed(rows, space=1).numpy()
            np.testing.assert_allclose(told["embeddings"], expected, rtol=1e-4, atol=1e-5)
            items = {"items": rows.tolist()}
            assert "no map" in detail(client.post("/embed?space=7", json=items), 422)
            assert "space" in detail(client.post("/embed?space=first", json=items), 422)

    @pytest.mark.parametrize(
        ("items", "sentence"),
        [
            ([[float("nan")] * 8], "finite"),
            ([[1.0] * 7], r"shape \(n, 8\)"),
            ([[1.0] * 8, [1.0]], "one shape"),
            (["/etc/passwd"], "lists of numbers"),
            ([[None] * 8], "lists of numbers"),
            ([[10**400] * 8], "lists of numbers"),
            ([], "at least one"),
            ("rows", "must be a list"),
            (None, "must be a list"),
        ],
        ids=lambda value: str(value)[:20],
    )
    def test_what_cannot_be_used_is_refused_in_a_sentence(
        self, space: Workspace, items: Any, sentence: str
    ) -> None:
        with client_of(space) as client:
            body = json.dumps({"items": items}).encode()
            answer = client.post(
                "/embed", content=body, headers={"content-type": "application/json"}
            )
            with pytest.raises(ValueError, match=sentence):
                raise ValueError(detail(answer, 422))

    def test_limits(self, space: Workspace) -> None:
        with client_of(space, max_items=4, max_bytes=1000) as client:
            row = [0.5] * 8
            assert "4 items" in detail(client.post("/embed", json={"items": [row] * 5}), 413)
            assert "1000 bytes" in detail(client.post("/embed", json={"items": [row] * 99}), 413)
            typed = {"content-type": "text/csv"}
            assert "text/csv" in detail(client.post("/embed", content=b"1,2", headers=typed), 415)
            parts = iter([b'{"items": ', b"[]}"])
            assert "Content-Length" in detail(client.post("/embed", content=parts), 411)

    def test_a_token_is_asked_for(self, space: Workspace) -> None:
        items = {"items": [[0.5] * 8]}
        with client_of(space, token="secret") as client:
            for path in ("/versions", "/metrics", "/"):
                assert "token" in detail(client.get(path), 401)
            for given in ("Bearer wrong", "Basic c2VjcmV0", "Basic ä", "Bearer", ""):
                headers = {"authorization": given.encode()}
                detail(client.post("/embed", json=items, headers=headers), 401)
            assert client.get("/healthz").status_code == 200
            bearer = {"authorization": "Bearer secret"}
            assert client.post("/embed", json=items, headers=bearer).status_code == 200
            assert client.get("/", auth=("anybody", "secret")).status_code == 200


class TestBodies:
    @pytest.mark.parametrize(
        "array",
        [
            np.arange(6.0).reshape(2, 3),
            np.asfortranarray(np.arange(6).reshape(2, 3)),
            np.zeros((0, 3)),
        ],
    )
    def test_arrays_come_back(self, array: np.ndarray) -> None:
        np.testing.assert_array_equal(read_npy(write_npy(array)), array)

    def test_a_header_that_lies_reserves_nothing(self) -> None:
        body = write_npy(np.zeros((2, 3)))
        huge = body.replace(b"(2, 3), }   ", b"(2, 3000000), }")[: len(body)]
        for wrong in (huge, body[:-1], body + b"0", b"", b"\x93NUMPY", body[:40]):
            with pytest.raises(ValueError, match=r"NumPy's format|does not fit"):
                read_npy(wrong)

    @pytest.mark.parametrize(
        "header",
        ["{'descr': (", "'" * 3, "(" * 5000, "{'descr': [], 'shape': {}[0]}", "\0", "-" * 9999],
    )
    def test_a_header_that_is_no_python_is_refused(self, header: str) -> None:
        magic = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
        with pytest.raises(ValueError, match="NumPy's format"):
            read_npy(magic + header.encode())

    def test_objects_are_not_unpickled(self) -> None:
        file = io.BytesIO()
        np.save(file, np.array([{}], dtype=object), allow_pickle=True)
        with pytest.raises(ValueError, match="must have numbers"):
            read_npy(file.getvalue())

    def test_images_in_base64_are_what_their_file_is(self, tmp_path: Path) -> None:
        domain = Images(8, channels=1, encoder="small")
        pixels = np.random.default_rng(0).integers(0, 256, (12, 10), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "a.png")
        content = (tmp_path / "a.png").read_bytes()
        expected = domain.collect([tmp_path / "a.png"]).take(torch.tensor([0]))
        text = base64.b64encode(content).decode()
        for body in ({"items": [text]}, {"items": [f"data:image/png;base64,{text}"]}):
            (found,) = batches(domain, body)
            assert torch.equal(found, expected)
        (found,) = read_batches(domain, "image/png", content, max_items=1, batch_size=4)
        assert torch.equal(found, expected)

    @pytest.mark.parametrize("item", ["a.png", "/etc/passwd", 5, "", "AAAA", ["a.png"]])
    def test_no_request_opens_a_file(
        self, item: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Image.new("L", (8, 8)).save(tmp_path / "a.png")
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ValueError, match="image 0"):
            batches(Images(8, channels=1), {"items": [item]})

    def test_texts_and_graphs(self, tmp_path: Path) -> None:
        texts = Text().collect_json(["Where is it?", ["question", "answer"]])
        assert texts.contents[0] == b"Where is it?"
        graphs = batches(Graphs(features=1), {"items": [{"edges": [[0, 1]], "x": [[1], [2]]}] * 2})
        assert len(graphs[0]) == 2
        with pytest.raises(ValueError, match="graph 0 must be"):
            batches(Graphs(), {"items": ["graphs.jsonl"]})

    def test_many_items_are_several_batches(self) -> None:
        found = batches(Vectors(1), {"items": [[n] for n in range(10)]})
        assert [len(batch) for batch in found] == [4, 4, 2]
        assert torch.cat(found)[:, 0].tolist() == list(range(10))


def batches(domain: Domain, body: Any) -> list[Any]:
    content = json.dumps(body).encode()
    return read_batches(domain, "application/json", content, max_items=10, batch_size=4)


class Slow:
    """A version whose forward passes wait until they may, and which remembers them."""

    def __init__(self) -> None:
        self.begun, self.may = threading.Event(), threading.Event()
        self.passes: list[int] = []

    def embed(self, batches: list[torch.Tensor]) -> torch.Tensor:
        self.begun.set()
        assert self.may.wait(20)
        rows = torch.cat(batches)
        self.passes.append(len(rows))
        if bool((rows < 0).any()):
            raise RuntimeError("an item that breaks the encoder")
        return rows * 2


class TestBatcher:
    async def ask(self, batcher: Batcher, version: Any, *numbers: float) -> asyncio.Task[Tensor]:
        """What waits, or is in the encoder already, when this returns."""
        rows = torch.tensor([[number] for number in numbers])
        asked = asyncio.create_task(batcher.embed(version, Chain((), 1.0, 1.0), [rows]))
        await asyncio.sleep(0)
        return asked

    def test_what_waits_goes_through_the_encoder_together(self) -> None:
        first, second = Slow(), Slow()

        async def main() -> list[Tensor]:
            batcher = Batcher(4, 100, Metrics())
            asked = [await self.ask(batcher, first, 0.0)]
            assert await asyncio.to_thread(first.begun.wait, 20)  # it is under way, alone
            asked += [await self.ask(batcher, first, float(n), float(n)) for n in range(1, 4)]
            asked += [await self.ask(batcher, second, 4.0)]
            first.may.set()
            second.may.set()
            batcher.close()
            return await asyncio.gather(*asked)

        assert [rows[0, 0].item() for rows in asyncio.run(main())] == [0, 2, 4, 6, 8]
        assert (first.passes, second.passes) == ([1, 4, 2], [1])

    def test_parts_of_a_request_come_back_in_order(self) -> None:
        slow = Slow()
        slow.may.set()

        async def main() -> Tensor:
            batcher = Batcher(2, 100, Metrics())
            parts = torch.arange(5.0)[:, None].split(2)
            try:
                return await batcher.embed(slow, Chain((), 1.0, 1.0), parts)  # type: ignore[arg-type]
            finally:
                batcher.close()

        assert asyncio.run(main())[:, 0].tolist() == [0, 2, 4, 6, 8]
        assert sum(slow.passes) == 5
        assert max(slow.passes) == 2

    def test_too_many_are_refused_and_cancelled_ones_left_out(self) -> None:
        slow = Slow()

        async def main() -> None:
            batcher = Batcher(4, 3, Metrics())
            await self.ask(batcher, slow, 1.0)
            assert await asyncio.to_thread(slow.begun.wait, 20)
            waiting = await self.ask(batcher, slow, 1.0, 2.0, 3.0)
            with pytest.raises(QueueFull, match="3 items wait"):
                await (await self.ask(batcher, slow, 1.0))
            waiting.cancel()
            await asyncio.sleep(0)
            slow.may.set()
            batcher.close()

        asyncio.run(main())
        assert slow.passes == [1]

    def test_one_bad_item_harms_nobody_else(self) -> None:
        slow = Slow()

        async def main() -> None:
            batcher = Batcher(8, 100, Metrics())
            await self.ask(batcher, slow, 1.0)
            assert await asyncio.to_thread(slow.begun.wait, 20)
            good, bad, other = [await self.ask(batcher, slow, n) for n in (1.0, -1.0, 3.0)]
            slow.may.set()
            batcher.close()
            assert ((await good).item(), (await other).item()) == (2, 6)
            with pytest.raises(RuntimeError, match="breaks"):
                await bad

        asyncio.run(main())

    def test_a_version_is_let_go_once_it_has_answered(self) -> None:
        async def main() -> weakref.ref[Slow]:
            slow = Slow()
            slow.may.set()
            await (await self.ask(batcher, slow, 1.0))
            return weakref.ref(slow)

        batcher = Batcher(4, 100, Metrics())
        version = asyncio.run(main())
        wait_for(lambda: version() is None)
        batcher.close()


class TestWorkspace:
    def test_versions_history_and_metrics(self, space: Workspace) -> None:
        with client_of(space) as client:
            client.post("/embed", json={"items": [[0.5] * 8] * 3})
            told = client.get("/versions").json()
            assert (told["version"], told["current"]) == (2, 2)
            assert [version["version"] for version in told["kept"]] == [1, 2]
            assert told["spaces"]["1"]["encoder"] == space.encoder_hash(1)
            page = client.get("/")
            assert "2 versions so far" in page.text
            assert page.headers["refresh"]
            metrics = client.get("/metrics").text
            assert 'incontrast_requests_total{path="/embed",status="200"} 1.0' in metrics
            assert "incontrast_batch_items_sum 3.0" in metrics
            assert "incontrast_version 2.0" in metrics
            client.get("/wp-admin")
            assert 'path="other",status="404"' in client.get("/metrics").text

    def test_older_versions_of_starlette(self, space: Workspace) -> None:
        """They give middleware its application by name, and do not tell the route in the scope."""

        async def answered(scope: Scope, receive: Receive, send: Send) -> None:
            scope["endpoint"] = answered
            await send({"type": "http.response.start", "status": 200})

        async def sent(message: Message) -> None:
            pass

        metrics = Metrics()
        with client_of(space, token="secret") as client:
            for middleware in client.app.user_middleware:
                assert not middleware.args
                assert middleware.cls(app=answered, **middleware.kwargs)
        assert _guarded(app=answered, token="secret")
        scope = {"type": "http", "path": "/embed"}
        asyncio.run(metrics.middleware(answered)(scope, sent, sent))
        assert b'path="/embed",status="200"' in metrics.text()

    def test_a_rollback_is_followed(self, space: Workspace) -> None:
        with client_of(space) as client:
            space.rollback()
            wait_for(lambda: health(client)["version"] == 1)
            told = client.post("/embed?space=2", json={"items": [[0.5] * 8]}).json()
            assert (told["version"], told["encoder"]) == (1, space.encoder_hash(1))
            assert told["space_encoder"] == space.encoder_hash(2)

    def test_a_version_that_cannot_be_loaded_leaves_the_last_one(self, space: Workspace) -> None:
        space.rollback(1)
        weights = space.versions.folder(2) / "encoder.safetensors"
        content = weights.read_bytes()
        with client_of(space) as client:
            weights.write_bytes(content[:-1])
            write_json(space.state_file, asdict(replace(space.state(), current=2)))
            wait_for(lambda: health(client)["workspace"] == "unreadable")
            assert "is damaged" in client.get("/versions").json()["problem"]
            assert health(client)["version"] == 1
            assert client.post("/embed", json={"items": [[0.5] * 8]}).json()["version"] == 1
            weights.write_bytes(content)
            wait_for(lambda: health(client)["version"] == 2)
            assert health(client)["workspace"] == "ok"

    def test_what_cannot_be_loaded_is_tried_less_and_less_often(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        current, problems = Current.__new__(Current), ["damaged"] * 8 + [None] * 2
        pauses: list[float] = []
        tries = iter(problems)

        class Stop:
            def wait(self, pause: float) -> bool:
                pauses.append(pause)
                return len(pauses) > len(problems)

        def refresh() -> None:
            current.problem = next(tries)

        for name, value in {"_interval": 0.5, "_stop": Stop(), "refresh": refresh}.items():
            monkeypatch.setattr(current, name, value, raising=False)
        current._watch()
        assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30, 0.5, 0.5]

    def test_what_was_loaded_in_vain_is_let_go(
        self, space: Workspace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loaded: list[weakref.ref[Any]] = []

        def load(self: Version, workspace: Workspace, number: int) -> None:
            weights = torch.zeros(3)
            loaded.append(weakref.ref(weights))
            raise WorkspaceError(f"version {number} ({weights.sum()}) is of no use")

        settings = ServeSettings(workspace=space.folder, interval=3600)
        current = Current(settings, Metrics())
        monkeypatch.setattr(Version, "__init__", load)
        space.rollback(1)
        current.refresh()
        current.close()
        gc.collect()
        assert current.problem == "version 1 is of no use"
        assert [weights() for weights in loaded] == [None]

    def test_a_swap_is_logged(self, space: Workspace, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "incontrast.serve")
        current = Current(ServeSettings(workspace=space.folder, interval=3600), Metrics())
        space.rollback(1)
        current.refresh()
        current.close()
        assert caplog.messages == ["version 1 serves now, after version 2"]

    @pytest.mark.parametrize("how", ["deleted", "replaced"])
    def test_the_last_version_outlives_its_workspace(self, space: Workspace, how: str) -> None:
        with client_of(space) as client:
            shutil.rmtree(space.folder)
            if how == "replaced":
                Workspace.create(space.folder, Learner(Vectors(8)))
            wait_for(lambda: health(client)["workspace"] != "ok")
            assert health(client)["status"] == "ok"
            told = client.post("/embed", json={"items": [[0.5] * 8]}).json()
            assert told["version"] == 2
            if how == "deleted":
                assert "cannot be read" in detail(client.get("/versions"), 503)
                assert "cannot be read" in detail(client.get("/"), 503)
            assert "incontrast_workspace_readable 0.0" in client.get("/metrics").text


class TestSearch:
    @pytest.fixture
    def index(self, space: Workspace, tmp_path: Path, blobs) -> MigratingIndex:
        """Of version 1, with 20 items."""
        index = MigratingIndex(tmp_path / "index", space.adapter, first=space.stamp(1))
        index.add([f"item {n}" for n in range(20)], space.embed(blobs(20), version=1), 1)
        return index

    def test_queries_are_mapped_into_the_space_of_the_index(
        self, space: Workspace, index: MigratingIndex, blobs
    ) -> None:
        rows = blobs(5, seed=3)
        with client_of(space, index=index.folder) as client:
            told = client.post("/search?count=3", json={"items": rows.tolist()}).json()
            found = index.search(space.embed(rows), 2, 3)
            assert told["ids"] == found.ids
            np.testing.assert_allclose(told["cosines"], found.cosines, atol=1e-4)
            assert (told["version"], told["space"]) == (2, 1)
            assert told["space_encoder"] == space.encoder_hash(1)
            told_k = detail(client.post("/search?k=3", json={"items": rows.tolist()}), 422)
            assert "no parameter 'k'" in told_k
            assert "count" in told_k
            assert "count" in detail(client.post("/search?count=0", json={"items": []}), 422)

    def test_what_is_added_and_a_cutover_are_followed(
        self, space: Workspace, index: MigratingIndex, blobs
    ) -> None:
        rows = blobs(1, seed=3)

        def search() -> dict[str, Any]:
            told: dict[str, Any] = client.post("/search", json={"items": rows.tolist()}).json()
            return told

        with client_of(space, index=index.folder) as client:
            index.add(["new"], space.embed(rows), 2)
            wait_for(lambda: search()["ids"][0][0] == "new")
            index.prepare(space.stamp(2))
            index.backfill()
            assert search()["space"] == 1
            index.cutover()
            wait_for(lambda: search()["space"] == 2)
            index.rollback()
            wait_for(lambda: search()["space"] == 1)

    def test_an_index_that_does_not_serve_is_not_read(
        self, space: Workspace, index: MigratingIndex
    ) -> None:
        settings = ServeSettings(workspace=space.folder, index=index.folder, interval=3600)
        current = Current(settings, Metrics())
        served = current.index
        index.prepare(space.stamp(2))
        index.backfill()
        current.refresh()
        assert current.index is served
        index.delete(["item 1"])
        current.refresh()
        assert current.index is not None
        assert current.index.ids() == index.serving.ids()
        current.close()

    def test_an_index_of_elsewhere_is_refused(self, space: Workspace, tmp_path: Path) -> None:
        for wrong in ({"workspace": "another"}, {"encoder": "0" * 32}):
            folder = tmp_path / next(iter(wrong))
            MigratingIndex(folder, space.adapter, first=space.stamp(1)._replace(**wrong))
            with pytest.raises(WorkspaceError, match="vectors of an encoder unknown to"):
                create_app(ServeSettings(workspace=space.folder, index=folder))

    def test_without_an_index_there_is_no_search(self, space: Workspace) -> None:
        with client_of(space) as client:
            assert "--index" in detail(client.post("/search", json={"items": [[0.5] * 8]}), 404)


def health(client: TestClient) -> dict[str, Any]:
    told: dict[str, Any] = client.get("/healthz").json()
    return told


def test_a_body_in_chunks_passes_no_limit_by_a_content_length(space: Workspace) -> None:
    with server_of(space) as address, httpx.Client(base_url=address) as client:
        body = json.dumps({"items": [[0.5] * 8]}).encode()
        told = {"content-type": "application/json", "content-length": "10"}
        headers = told | {"transfer-encoding": "chunked"}
        answer = client.post("/embed", content=iter([body]), headers=headers)
        if answer.status_code == 400:  # httptools refuses both headers together, h11 does not
            assert "Invalid HTTP request" in answer.text
        else:
            assert "Transfer-Encoding" in detail(answer, 411)


def test_updates_and_a_rollback_under_load_fail_and_mix_nothing(space: Workspace, blobs) -> None:
    rows = blobs(30, seed=5)
    answers: list[tuple[int, dict[str, Any]]] = []
    done = threading.Event()

    def ask(address: str, start: int, query: str) -> None:
        with httpx.Client(base_url=address, timeout=60) as client:
            while not done.is_set():
                items = rows[start : start + 3].tolist()
                answer = client.post(f"/embed{query}", json={"items": items})
                answers.append((start, {"status": answer.status_code, **answer.json()}))

    def reached(version: int) -> bool:
        return bool(answers) and answers[-1][1].get("version") == version

    with server_of(space) as address, ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, address, 3 * n, "?space=1" if n == 3 else "") for n in range(4)]
        try:
            wait_for(lambda: reached(2))
            assert space.update(blobs(20, seed=6), force=True).version == 3
            wait_for(lambda: reached(3))
            assert space.rollback() == 2
            wait_for(lambda: reached(2))
        finally:
            done.set()
        for asker in asked:
            asker.result(60)

    assert {told["status"] for _, told in answers} == {200}
    assert {told["version"] for _, told in answers} == {2, 3}
    learners = {number: space.learner(number, memory=False) for number in (2, 3)}
    expected = {
        (number, start, into): learner.embed(rows[start : start + 3], space=into).numpy()
        for number, learner in learners.items()
        for start, into in [(0, None), (3, None), (6, None), (9, 1)]
    }
    for start, told in answers:
        version = told["version"]
        assert told["encoder"] == space.encoder_hash(version)
        assert told["space"] == (1 if start == 9 else version)
        own = expected[version, start, 1 if start == 9 else None]
        np.testing.assert_allclose(told["embeddings"], own, rtol=1e-4, atol=1e-5)
