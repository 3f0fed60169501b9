"""Wrong requests of every kind: a short plain sentence with the right status, and nothing of the
machine, of Python or of the libraries beneath.
"""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

from incontrast import Graphs, Images, Text, Workspace
from incontrast.domains.base import Domain
from incontrast.serve.app import create_app
from incontrast.serve.body import JSON, NPY, read_batches
from incontrast.serve.current import Current, Version
from incontrast.serve.metrics import Metrics
from incontrast.serve.settings import ServeSettings
from tests.serve.service import client_of, server_of

INTERNAL = re.compile(
    r"Error|Exception|Traceback|codec|decoding| object (at|has)|0x[0-9a-f]{4}|\.py\b|np\.|sys\."
    r"|/(tmp|home|root|usr)/"
)
ROW = [0.5] * 8


def told(response: httpx.Response, status: int) -> str:
    """The sentence of a refusal."""
    assert response.status_code == status, response.text
    assert set(response.json()) == {"detail"}
    return plain(response.json()["detail"])


def plain(sentence: str) -> str:
    assert 10 < len(sentence) < 200, sentence
    assert "\n" not in sentence
    assert not INTERNAL.search(sentence), sentence
    return sentence


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def claimed(shape: tuple[int, ...]) -> bytes:
    """Eight numbers with a header that tells another shape."""
    file = io.BytesIO()
    about = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)
    return file.getvalue() + bytes(64)


@pytest.fixture
def client(space: Workspace) -> Iterator[TestClient]:
    with client_of(space, max_items=16, max_bytes=100_000) as client:
        yield client


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b'{"items": [[0.5]], "space": 1}', "unknown field 'space': .* /embed.space=1"),
        (b"", "no JSON from character 0"),
        (b"{", "no JSON from character 1"),
        (b'{"items": [[1,', "no JSON from character 14"),
        (b"hello", "no JSON from character 0"),
        (b'{"items": ["\xff"]}', "no JSON in UTF-8"),
        (b"[]", '"items": '),
        (b"5", '"items": '),
        (b'"items"', '"items": '),
        (b'{"rows": []}', '"items": '),
        (b'{"items": ' + b"[" * 40_000, "too long or deep"),
        (b'{"items": [[' + b"9" * 5000 + b"]]}", "too long or deep"),
        (b'{"items": {"0": [1]}}', "must be a list"),
        (b'{"items": [NaN]}', r"shape \(n, 8\)"),
        (b'{"items": [[' + b",".join([b"1e999"] * 8) + b"]]}", "finite"),
        (b'{"items": [[1, 2], [1]]}', "of one shape"),
        (b'{"items": [{"a": 1}]}', "lists of numbers"),
        (b'{"items": ["\\ud800"]}', "lists of numbers"),
        (b'{"items": [[[1]]]}', r"shape \(n, 8\)"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_json(client: TestClient, body: bytes, sentence: str) -> None:
    answer = client.post("/embed", content=body, headers={"content-type": JSON})
    assert re.search(sentence, told(answer, 422))


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (npy(np.zeros((2, 8)))[:-3], "does not fit its 125 bytes"),
        (npy(np.zeros((2, 8))).replace(b"(2, 8)", b"(9999999, 8)"), "does not fit"),
        (npy(np.zeros((2, 8))).replace(b"(2, 8)", b"(-2,-8)"), "does not fit"),
        (claimed((-1, -8)), "does not fit its 64 bytes"),
        (claimed((True, 8)), "does not fit its 64 bytes"),
        (claimed((1,) * 70 + (8,)), "does not fit its 64 bytes"),
        (npy(np.float64(3)), "does not fit"),
        (npy(np.zeros((0, 8))), "no items"),
        (npy(np.zeros((2, 7))), r"shape \(n, 8\)"),
        (npy(np.full((2, 8), np.nan)), "finite"),
        (npy(np.full((2, 8), 1e300)), "finite"),
        (npy(np.array([{}], dtype=object)), "must have numbers"),
        (npy(np.array(["a"])), "must have numbers"),
        (npy(np.zeros((2, 8), complex)), "must have numbers"),
        (npy(np.zeros((2, 8), np.longdouble)), "must have numbers"),
        (npy(np.zeros(2, [("a", "f4")])), "must have numbers"),
        (b"", "NumPy's format"),
        (b"hello", "NumPy's format"),
        (b"\x93NUMPY", "NumPy's format"),
        (b"\x93NUMPY\x01\x00\x03\x00(((", "NumPy's format"),
        (b"\x93NUMPY\x09\x00" + b"\0" * 40, "NumPy's format"),
    ],
    ids=lambda value: str(value)[-30:],
)
def test_arrays(client: TestClient, body: bytes, sentence: str) -> None:
    answer = client.post("/embed", content=body, headers={"content-type": NPY})
    assert re.search(sentence, told(answer, 422))


IMAGES = Images(8, channels=1, encoder="small")


@pytest.mark.parametrize(
    ("domain", "items", "sentence"),
    [
        (IMAGES, [5], "in base64"),
        (IMAGES, [[[0, 1]]], "in base64"),
        (IMAGES, ["/etc/passwd"], "in base64"),
        (IMAGES, ["\ud800"], "in base64"),
        (IMAGES, [""], "it is empty"),
        (IMAGES, [base64.b64encode(b"hello").decode()], "none of the formats"),
        (Text(), [5], "a string or a pair"),
        (Text(), ["\ud800"], "not Unicode text"),
        (Text(), [" "], "empty"),
        (Text(), [["a", 5]], "a string or a pair"),
        (Text(), [{"title": 5}], "no field 'text'"),
        (Graphs(features=2), ["graph"], "graph 0 must be"),
        (Graphs(features=2), [{"edges": [[0, 9]], "x": [[1, 2]]}], "from 0 to 9"),
        (Graphs(features=2), [{"edges": [[0, 0]], "x": [[1, 2], [1]]}], "a row of numbers"),
        (Graphs(features=2), [{"edges": [[0, 2**70]], "x": [[1, 2]]}], "pairs of node numbers"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_items_of_other_kinds(domain: Domain, items: Any, sentence: str) -> None:
    body = json.dumps({"items": items}).encode()
    with pytest.raises(ValueError, match=sentence) as refusal:
        read_batches(domain, JSON, body, max_items=10, batch_size=4)
    plain(str(refusal.value))


@pytest.mark.parametrize("domain", [IMAGES, Text()], ids=["images", "texts"])
def test_a_file_that_is_no_image(domain: Domain) -> None:
    for body in (b"\x89PNG\r\n\x1a\n1234", b"<svg/>", b""):
        with pytest.raises(ValueError, match=r"image 0|texts in JSON") as refusal:
            read_batches(domain, "image/png", body, max_items=10, batch_size=4)
        plain(str(refusal.value))


def test_addresses_and_methods(client: TestClient) -> None:
    items = {"items": [ROW]}
    assert told(client.get("/wp-admin"), 404) == "there is no such address"
    for answer in (client.get("/embed"), client.delete("/versions"), client.request("BREW", "/")):
        assert "other methods" in told(answer, 405)
        assert answer.headers["allow"]
    for wrong in ("first", "", "1.5", "-1", "0x1", "9" * 5000):
        assert "whole number" in told(client.post(f"/embed?space={wrong}", json=items), 422)
    assert "no map" in told(client.post("/embed?space=7", json=items), 422)
    for wrong in ("Space=1", "spaces=1", "space=1&k=3"):
        sentence = told(client.post(f"/embed?{wrong}", json=items), 422)
        assert "/embed has no parameter" in sentence
        assert sentence.endswith("is space")
    assert "2 times" in told(client.post("/embed?space=1&space=2", json=items), 422)
    assert "--index" in told(client.post("/search", json=items), 404)


def test_types_and_sizes(client: TestClient) -> None:
    assert "content type" in told(client.post("/embed", content=b"1,2"), 415)
    assert "form" in told(client.post("/embed", data={"items": "1"}), 415)
    headers = {"content-type": b"\xff\xfe"}
    assert "content type" in told(client.post("/embed", content=b"{}", headers=headers), 415)
    assert "16 items" in told(client.post("/embed", json={"items": [ROW] * 17}), 413)
    assert "100000 bytes" in told(client.post("/embed", content=b"0" * 100_001), 413)


def test_a_failure_that_nobody_foresaw(space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError(f"something about {space.folder}")

    monkeypatch.setattr(Version, "embed", fail)
    app = create_app(ServeSettings(workspace=space.folder))
    with TestClient(app, raise_server_exceptions=False) as client:
        assert "log" in told(client.post("/embed", json={"items": [ROW]}), 500)
        assert client.get("/healthz").json()["status"] == "ok"


def test_paths_of_the_machine_are_for_the_log(
    space: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(ServeSettings(workspace=space.folder, interval=3600))
    with TestClient(app) as client:
        state = space.state_file.read_bytes()
        space.state_file.write_bytes(state[:40])
        assert "space" in told(client.get("/versions"), 503)
        assert str(space.folder) in caplog.text
        shutil.rmtree(space.folder)
        for path in ("/versions", "/"):
            assert "cannot be read" in told(client.get(path), 503)


def test_folders_may_have_brackets(space: Workspace) -> None:
    folder = space.folder.rename(space.folder.with_name("space (old) (2)"))
    current = Current(ServeSettings(workspace=folder, interval=3600), Metrics())
    (folder / "state.json").write_text("{")
    current.refresh()
    current.close()
    assert str(current.problem).startswith("space (old) (2)/state.json is damaged: restore it")


def test_what_is_sent_by_hand(space: Workspace) -> None:
    """Requests that no library sends."""
    row = json.dumps({"items": [ROW]}).encode()
    post = b"POST /embed HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
    good = post + b"Content-Length: %d\r\n\r\n" % len(row) + row
    bad = post + b"Content-Length: 1\r\n\r\n{"
    last = b"GET /healthz HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"

    with server_of(space) as address:

        def answers(sent: bytes) -> list[str]:
            """The status of each answer to what is sent over one connection, with all it says."""
            host, port = address.removeprefix("http://").split(":")
            with closing(socket.create_connection((host, int(port)), timeout=20)) as connection:
                connection.sendall(sent)
                received = b""
                while part := connection.recv(2**16):
                    received += part
            parts = re.split(r"(?=HTTP/1\.1 \d)", received.decode())[1:]
            assert not any(INTERNAL.search(part.partition("\r\n\r\n")[2]) for part in parts)
            return [part.split()[1] for part in parts]

        assert answers(good + bad + good + last) == ["200", "422", "200", "200"]  # pipelined
        for wrong in (
            b"hello\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
            b"GET /\xff\xfe HTTP/1.1\r\nHost: here\r\n\r\n",
            post + b"Content-Length: -1\r\n\r\n",
            post + b"Content-Length: abc\r\n\r\n",
            post + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        ):
            assert answers(wrong) == ["400"], wrong
        close = post + b"Connection: close\r\n"
        assert answers(close + b"Content-Length: 1073741824\r\n\r\n") == ["413"]  # 1 GB, not read
        assert answers(close + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n") == ["411"]
