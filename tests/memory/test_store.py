"""Items in a file: what goes in comes out, what is deleted is gone, damage is found."""

from __future__ import annotations

import copy
import os
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator

from incontrast import KeepAll, Queue, Reservoir, TensorCollection, Vectors
from incontrast.memory.memory import Memory, StoredCollection
from incontrast.memory.store import (
    FORGOTTEN,
    GONE,
    PRESENT,
    Extent,
    KnownHashes,
    Store,
    StoreBusy,
    StoreError,
    content_hash,
)

DOMAIN = Vectors(1)


def rows(start: int, count: int) -> TensorCollection:
    return TensorCollection(torch.arange(start, start + count, dtype=torch.float32)[:, None])


def put(store: Store, policy, start: int, count: int, seed: int) -> StoredCollection:
    """Items arrive in a store, as a workspace does it."""
    ids = torch.arange(start, start + count)
    keys = policy.keys(ids, Generator().manual_seed(seed))
    store.append(start, DOMAIN.pack(rows(start, count), torch.arange(count)), keys.numpy())
    sizes = torch.from_numpy(store.columns(start + count)["size"][start:].copy())
    return StoredCollection(store, DOMAIN, ids, sizes, keys)


def add(store: Store, start: int, *contents: bytes) -> None:
    """Items whose keys do not matter."""
    store.append(start, contents, np.zeros(len(contents)))


def contents(memory: Memory) -> list[int]:
    if memory.items is None:
        return []
    return memory.items.take(torch.arange(len(memory)))[:, 0].long().tolist()


@settings(max_examples=30)  # each makes three files
@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    limit=st.integers(1, 30),
    unwanted=st.sets(st.integers(0, 19), max_size=5),
)
def test_a_memory_over_a_store_is_the_memory_in_ram(
    sizes: list[int], limit: int, unwanted: set[int], tmp_path_factory
) -> None:
    for policy in (KeepAll(), Reservoir(items=limit), Queue(items=limit)):
        store = Store.create(tmp_path_factory.mktemp("store") / "memory.sqlite")
        plain, stored, start = Memory(policy), Memory(policy), 0
        for number, size in enumerate(sizes):
            new = put(store, policy, start, size, number)
            plain = plain.admit(rows(start, size), Generator().manual_seed(number))
            stored = stored.admit(new, Generator().manual_seed(number))
            start += size
            if number == 0:
                forgotten = {item for item in unwanted if item < start}
                plain = plain.forget(forgotten)
                store.remove(forgotten, forgotten=True)
            # Read back from nothing but two numbers.
            extent = Extent(stored.arrivals, stored.threshold)
            stored = Memory.over(store, DOMAIN, policy, extent)
            assert contents(stored) == contents(plain) == plain.ids.tolist()
            assert torch.equal(stored.ids, plain.ids)
            assert torch.equal(stored.keys, plain.keys)
            assert (stored.seen, stored.threshold) == (plain.seen, plain.threshold)
            assert torch.equal(stored.forgotten, plain.forgotten)
        store.close()


def test_batches_come_in_the_order_that_was_asked_for(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "memory.sqlite")
    items = put(store, KeepAll(), 0, 50, 0)
    assert items.take(torch.tensor([7, 3, 49]))[:, 0].tolist() == [7, 3, 49]
    later = items.select(torch.tensor([9, 8])).extend(items.select(torch.tensor([1])))
    assert later.take(torch.arange(3))[:, 0].tolist() == [9, 8, 1]
    assert later.nbytes == 48
    assert copy.deepcopy(later) is later
    assert later.in_memory().data[:, 0].tolist() == [9, 8, 1]
    other = Store.create(tmp_path / "other.sqlite")
    with pytest.raises(ValueError, match="items of two stores"):
        later.extend(StoredCollection(other, DOMAIN, later.ids, later.sizes()))


def test_only_a_part_of_very_many_is_read_at_once(tmp_path: Path, monkeypatch) -> None:
    store = Store.create(tmp_path / "memory.sqlite")
    items = put(store, KeepAll(), 0, 50, 0)
    monkeypatch.setattr("incontrast.memory.memory.AT_ONCE", 5 * int(items.sizes()[0]))
    assert items.in_memory().data[:, 0].tolist() == [0, 12, 24, 37, 49]


def test_many_items_span_rows_of_columns(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("incontrast.memory.store.ROWS", 8)
    store = Store.create(tmp_path / "memory.sqlite")
    put(store, Reservoir(items=9), 0, 20, 0)
    keys = torch.rand(20, dtype=torch.float64, generator=Generator().manual_seed(0))
    assert np.array_equal(store.columns(20)["key"], keys)
    assert np.array_equal(store.columns(11)["key"], keys[:11])
    assert store.remove([7, 8, 19, 19]) == 3
    assert (store.columns(20)["state"] == PRESENT).sum() == 17
    assert store.check() == []
    store.drop_from(16)
    assert store.arrivals() == 16
    with pytest.raises(StoreError, match="has 16 items where 20 arrived"):
        store.columns(20)


def test_items_that_are_gone_leave_little_behind(tmp_path: Path) -> None:
    """Their hashes, by which they are known when they come again, and no more."""
    store = Store.create(tmp_path / "memory.sqlite")
    put(store, Reservoir(items=9), 0, 4000, 0)
    store.remove(range(5, 4000))
    (size,) = store._connection.execute(
        "select sum(length(keys) + length(sizes) + length(states) + length(hashes)) from chunks"
    ).fetchone()
    assert size / 4000 < 8.5
    keys = torch.rand(4000, dtype=torch.float64, generator=Generator().manual_seed(0))
    assert np.array_equal(store.columns(4000)["key"][:5], keys[:5])
    contents = DOMAIN.pack(rows(3999, 1), torch.arange(1))
    assert store.find([content_hash(contents[0])]).tolist() == [3999]
    assert store.check() == []


def test_many_small_arrivals_are_joined(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("incontrast.memory.store.ROWS", 8)
    store = Store.create(tmp_path / "memory.sqlite")
    rows = "select count(*) from chunks"
    for first in range(0, 60, 3):
        put(store, Reservoir(items=9), first, 3, first)
        store.remove([first])
    states = store.columns(60)["state"]
    assert states.tolist() == [GONE, PRESENT, PRESENT] * 20
    assert store.check() == []
    assert store._connection.execute(rows).fetchone()[0] < 20
    store.drop_from(58)
    assert store.arrivals() == 58
    assert store.columns(58)["state"].tolist() == states[:58].tolist()
    assert store.check() == []


def test_a_new_store_is_durable_and_has_had_no_arrivals(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "memory.sqlite")
    assert store.arrivals() == 0
    for each in (store, Store.open(store.path)):
        pragmas = ("synchronous", "secure_delete")
        found = [each._connection.execute(f"pragma {name}").fetchone()[0] for name in pragmas]
        assert found == [2, 1]  # what is written reaches the disk; what is deleted becomes zeros


def test_what_no_memory_holds_is_deleted(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "memory.sqlite")
    store.append(0, [b"a", b"b", b"c", b"d", b"e"], np.array([0.1, 0.5, 0.9, 0.3, 0.9]))
    store.keep_only([Extent(2, 0.4), Extent(4, 0.6, skipped=((1, 2),))])
    assert store.columns(5)["state"].tolist() == [PRESENT, GONE, GONE, PRESENT, GONE]
    assert store.read([0, 3]) == [b"a", b"d"]
    store.keep_only([Extent(4, 0.6)])  # nothing more
    assert store.read([0, 3]) == [b"a", b"d"]
    assert store.check() == []


def test_what_is_forgotten_stays_forgotten_and_what_is_gone_can_be(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "memory.sqlite")
    add(store, 0, b"a", b"b", b"c")
    assert (store.remove([0]), store.remove([1], forgotten=True)) == (1, 1)
    assert store.remove([0, 1]) == 0
    assert store.columns(3)["state"].tolist() == [GONE, FORGOTTEN, PRESENT]
    assert store.remove([0], forgotten=True) == 0  # its content is gone, now it is forgotten too
    assert store.columns(3)["state"].tolist() == [FORGOTTEN, FORGOTTEN, PRESENT]


def test_what_had_begun_to_arrive_is_dropped_as_if_it_never_had(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "memory.sqlite")
    add(store, 0, b"a")
    add(store, 1, b"b", b"c")
    store.drop_from(1)
    assert (store.arrivals(), store.check()) == (1, [])
    add(store, 1, b"d")
    assert store.read([0, 1]) == [b"a", b"d"]


def test_items_are_known_by_what_a_memory_has_seen(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "memory.sqlite")
    add(store, 0, b"seen", b"forgotten", b"of a version rolled back", b"refused", b"discarded")
    store.remove([1], forgotten=True)
    store.remove([4])
    known = KnownHashes(store, Extent(3, 1.0, skipped=((2, 3),)), range(3, 4))
    asked = [b"seen", b"forgotten", b"of a version rolled back", b"refused", b"discarded", b"new"]
    seen, forgotten = known.contains(asked)
    assert seen.tolist() == [True, False, False, True, False, False]
    assert forgotten.tolist() == [False, True, False, False, False, False]
    assert not np.any(KnownHashes(Store.create(tmp_path / "empty.sqlite"), None).contains(asked))


def test_items_are_found_by_their_content(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "memory.sqlite")
    add(store, 0, b"one", b"two", b"one")
    assert store.find([content_hash(b"one"), content_hash(b"three")]).tolist() == [0, 2]
    store.remove([0], forgotten=True)
    assert store.find([content_hash(b"one")]).tolist() == [2]
    store.remove([2])  # no longer kept, but it can still be asked to be forgotten
    assert store.find([content_hash(b"one")]).tolist() == [2]


def test_a_memory_skips_items_of_other_versions(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "memory.sqlite")
    policy = Queue(items=5)
    start, here = 0, Memory(policy)
    for number in range(3):
        new = put(store, policy, start, 3, number)
        start += 3
        if number != 1:  # the second lot arrived after a version that was rolled back
            here = here.admit(new, Generator())
    extent = Extent(here.arrivals, here.threshold, skipped=((3, 6),))
    read = Memory.over(store, DOMAIN, policy, extent)
    assert read.ids.tolist() == here.ids.tolist() == [1, 2, 6, 7, 8]
    assert (read.seen, read.arrivals, store.arrivals()) == (here.seen, 9, 9) == (6, 9, 9)
    assert torch.equal(read.forgotten, here.forgotten)


def test_forgotten_bytes_are_gone_from_the_files(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "memory.sqlite")
    secrets = [os.urandom(600) for _ in range(40)]
    add(store, 0, *secrets)
    add(store, 40, os.urandom(40_000))  # longer than a page
    long = store.read([40])[0]
    store.remove([3, 17, 40], forgotten=True)
    store.erase()

    def everywhere() -> bytes:
        return b"".join(path.read_bytes() for path in tmp_path.iterdir())

    for lost in (secrets[3][:64], secrets[17][-64:], long[:64], long[-64:], long[20_000:20_064]):
        assert lost not in everywhere()
    assert content_hash(secrets[3]) not in everywhere()
    assert secrets[4] in everywhere()
    with pytest.raises(StoreBusy, match="item 3 was deleted by another process meanwhile"):
        store.read([3])
    store._connection.execute("delete from items where id = 5")
    with pytest.raises(StoreError, match="is damaged: it has lost item 5"):
        store.read([5])
    assert store.read([4]) == [secrets[4]]


def test_erasing_waits_for_readers_and_says_so(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("incontrast.memory.store.WAIT", 0.05)
    store = Store.create(tmp_path / "memory.sqlite")
    add(store, 0, b"one")
    reader = sqlite3.connect(store.path, isolation_level=None)
    reader.execute("begin")
    reader.execute("select * from items").fetchall()
    store.remove([0], forgotten=True)
    assert not store.fold()
    with pytest.raises(StoreBusy, match="another process is reading"):
        store.erase()
    reader.execute("commit")
    store.erase()


def test_a_reader_sees_what_is_committed_while_somebody_writes(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "memory.sqlite")
    add(store, 0, b"one")
    reader = Store.open(store.path, readonly=True)
    assert reader.read([0]) == [b"one"]
    with pytest.raises(StoreError, match="read-only"):
        add(reader, 1, b"two")
    add(store, 1, b"two")
    assert reader.read([1]) == [b"two"]


def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "memory.sqlite")
    add(store, 0, b"one")
    store._connection.execute("pragma max_page_count = 8")
    with pytest.raises(StoreError, match=r"no space left for .*: nothing was changed"):
        add(store, 1, *[bytes(20_000)] * 50)
    assert store.read([0]) == [b"one"]
    assert len(store.columns(1)["key"]) == 1
    add(store, 1, b"two")


def test_damage_is_found(tmp_path: Path) -> None:
    path = tmp_path / "memory.sqlite"
    store = Store.create(path)
    add(store, 0, *[bytes([number]) * 3000 for number in range(30)])
    store.erase()
    assert store.check() == []
    store.close()
    whole = path.read_bytes()
    place = whole.index(bytes([9]) * 3000) + 100

    path.write_bytes(whole[:place] + b"\xff" + whole[place + 1 :])
    flipped = Store.open(path)
    assert flipped.read([8]) == [bytes([8]) * 3000]
    with pytest.raises(StoreError, match="is damaged: item 9 is not what was stored; forget it"):
        flipped.read([9])
    assert flipped.check() == [f"{path} is damaged: item 9 is not what was stored"]
    flipped.close()

    path.write_bytes(b"nonsense" + whole[8:])
    with pytest.raises(StoreError, match=r"memory\.sqlite is damaged"):
        Store.open(path)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreError, match=r"memory\.sqlite is damaged"):
        Store.open(path)
    path.unlink()
    with pytest.raises(StoreError, match="is missing: restore it"):
        Store.open(path)


@pytest.mark.parametrize("column", ["keys", "sizes", "states", "hashes"])
def test_a_changed_record_of_items_is_found(tmp_path: Path, column: str) -> None:
    """One bit in it would leave an item out of training, or hide it from being forgotten."""
    path = tmp_path / "memory.sqlite"
    store = Store.create(path)
    add(store, 0, *(bytes([number]) * 30 for number in range(5)))
    store.close()
    with sqlite3.connect(path) as database:
        (content,) = database.execute(f"select {column} from chunks").fetchone()
        flipped = bytes([content[0] ^ 1]) + content[1:]
        database.execute(f"update chunks set {column} = ?", (flipped,))
    database.close()
    store = Store.open(path)
    message = "the record of items 0 and on is not what was written; restore"
    assert len(store.check()) == 1
    assert message in store.check()[0]
    for read in (
        lambda: store.columns(5),
        lambda: store.find([content_hash(b"?")]),
        lambda: store.remove([1]),
        store.arrivals,
    ):
        with pytest.raises(StoreError, match=message):
            read()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("delete from items where id = 3", "it has lost item 3"),
        ("update items set content = zeroblob(30) where id = 3", "item 3 is not what was stored"),
        ("update items set id = 9 where id = 3", "it holds items that never arrived"),
        ("delete from chunks", "it holds items that never arrived"),
    ],
)
def test_a_check_compares_items_with_their_records(
    tmp_path: Path, change: str, message: str
) -> None:
    path = tmp_path / "memory.sqlite"
    store = Store.create(path)
    add(store, 0, *(bytes([number]) * 30 for number in range(5)))
    assert store.check() == []
    store.close()
    with sqlite3.connect(path) as database:
        database.execute(change)
    database.close()
    assert any(message in problem for problem in Store.open(path).check())


def test_an_item_that_was_deleted_and_is_there_is_found(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "memory.sqlite")
    add(store, 0, b"one", b"two")
    row = store._connection.execute("select * from items where id = 1").fetchone()
    store.remove([1], forgotten=True)
    store._connection.execute("insert into items values (?, ?, ?)", row)
    assert any("kept, after it was deleted, item 1" in problem for problem in store.check())


def test_whatever_a_damaged_file_holds_is_damage(tmp_path: Path) -> None:
    """Zeroed pages can turn contents into other types, or into nothing."""
    store = Store.create(tmp_path / "memory.sqlite")
    add(store, 0, b"one", b"two")
    run = store._connection.execute
    run("pragma writable_schema = on")
    run("update sqlite_master set sql = replace(sql, ' not null', '')")
    run("pragma writable_schema = reset")
    run("update items set content = null where id = 0")
    run("update items set content = 'text' where id = 1")
    with pytest.raises(StoreError, match="item 0 is not what was stored"):
        store.read([0])
    with pytest.raises(StoreError, match="item 1 is not what was stored"):
        store.read([1])
    assert len(store.check()) >= 2


def test_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "memory.sqlite"
    store = Store.create(path)
    with pytest.raises(StoreError, match="exists already"):
        Store.create(path)
    store._connection.execute("pragma user_version = 99")
    store.close()
    with pytest.raises(StoreError, match="has format 99, not 3: use the incontrast that wrote it"):
        Store.open(path)
    other = sqlite3.connect(tmp_path / "other.sqlite")
    other.execute("create table t (a)")
    other.close()
    with pytest.raises(StoreError, match="is not a store of items"):
        Store.open(tmp_path / "other.sqlite")


def test_a_check_of_pages_that_give_rows_nobody_stored(tmp_path: Path, monkeypatch) -> None:
    store = Store.create(tmp_path / "memory.sqlite")
    add(store, 0, b"one", b"two")
    whole = store._rows

    def astray(query: str, *values: object):
        for row in whole(query, *values):
            yield (row[0] - 55, *row[1:]) if "from items" in query else row

    monkeypatch.setattr(store, "_rows", astray)
    assert f"{store.path} is damaged: it holds items that never arrived" in store.check()


def test_a_reader_who_stops_halfway_is_no_damage(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s.sqlite")
    for first in (0, 1):
        store.append(first, [b"a"], np.zeros(1))
    halfway = store._chunks()
    next(halfway)
    store.close()
    del halfway  # what cannot be raised here is a warning, and so fails
