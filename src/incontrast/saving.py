"""A learner as a folder of safetensors and JSON; loading runs no code."""

import hashlib
import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import numpy as np
import torch
from safetensors.torch import load as deserialise
from safetensors.torch import save as serialise
from safetensors.torch import save_file
from torch import Tensor

from incontrast._version import __version__
from incontrast.compat.link import Link, pack, unpack
from incontrast.domains.base import Domain
from incontrast.files import alone_in, check_outside, flush, make_folder, write_bytes
from incontrast.heads import EncoderWithHead, make_head
from incontrast.import_path import check_trust
from incontrast.memory.memory import Memory
from incontrast.randomness import seeded
from incontrast.settings import completed, decode, encode
from incontrast.weights import misfits

if TYPE_CHECKING:
    from incontrast.learner import Learner, Own

L = TypeVar("L", bound="Learner")

FORMAT = 4
SETTINGS = "learner.json"
LINK_FILES = (SETTINGS, "links.safetensors")
PARTS = ("domain", "initial_domain", "strategy", "fit_strategy", "objective", "head")
COLUMNS = ("ids", "keys", "forgotten")  # of a memory
# The files of a saved learner, and those that an interrupted ``save`` leaves.
_OURS = re.compile(
    r"learner\.json|(encoder|schedule|links|memory)(-[0-9a-f]{32})?\.safetensors"
    r"|\.(learner|encoder|schedule|links|memory)\S*\.(json|safetensors)\.\d+"
)


def save(learner: "Learner", folder: Path) -> None:
    """Write a fitted learner, which replaces an earlier one in the same folder as a whole.

    Files of tensors have their hash in their name. First they are written, then ``learner.json``,
    which lists them, is replaced, then older ones are deleted. So at any time, even after a power
    cut, the folder holds the earlier learner or this one, complete.
    """
    contents = {**_tensors(learner), "memory": _memory_tensors(learner.domain, learner.memory)}
    _check_free(folder)
    make_folder(folder)
    with alone_in(folder):  # two processes would delete each other's files
        files = {}
        for role, content in contents.items():
            data = serialise(content)
            files[role] = f"{role}-{_digest(data)}.safetensors"
            write_bytes(folder / files[role], data)
        settings = _settings(learner) | {"files": files}
        settings["checksum"] = _checksum(settings)
        write_bytes(folder / SETTINGS, (json.dumps(settings, indent=2) + "\n").encode())
        for file in folder.iterdir():
            if _OURS.fullmatch(file.name) and file.name not in (SETTINGS, *files.values()):
                file.unlink()
        flush(folder)


def write(learner: "Learner", folder: Path) -> None:
    """Write a fitted learner into an empty folder, without checksums and the items in memory."""
    for role, content in _tensors(learner).items():
        save_file(content, folder / f"{role}.safetensors")
    (folder / SETTINGS).write_text(json.dumps(_settings(learner), indent=2) + "\n")


def load(folder: Path, kind: type[L], **own: Unpack["Own"]) -> L:
    """Read what ``save`` wrote, as a learner of this class; ``own`` replaces saved parts."""
    file = folder / SETTINGS
    settings = _read_settings(file)
    try:
        if settings["checksum"] != _checksum(settings):
            raise _damaged(file, "its checksum is wrong")
        files = settings["files"].items()
        contents = {role: _tensors_of(folder / name, verify=True) for role, name in files}
    except FileNotFoundError:
        if _read_settings(file) != settings:  # meanwhile another learner was saved
            return load(folder, kind, **own)
        raise
    except (KeyError, TypeError, AttributeError) as error:
        raise _damaged(file, repr(error)) from error
    return _learner(settings, contents, file, file, kind, **own)


def read(
    folder: Path, kind: type[L], changes: dict[str, Any], where: Path, **own: Unpack["Own"]
) -> L:
    """Read what ``write`` wrote, which the caller has verified.

    ``changes`` replace saved settings, those of the domain one by one; they are in the file
    ``where``, which errors name.
    """
    file = folder / SETTINGS
    settings = _read_settings(file)
    views = changes.get("domain", {})
    domains = {name: {**settings[name], **views} for name in ("domain", "initial_domain")}
    roles = ("encoder", "schedule", "links")
    contents = {role: _tensors_of(folder / f"{role}.safetensors") for role in roles}
    return _learner(settings | changes | domains, contents, file, where, kind, **own)


def _learner(
    settings: dict[str, Any],
    contents: dict[str, dict[str, Tensor]],
    file: Path,
    where: Path,
    kind: type[L],
    **own: Unpack["Own"],
) -> L:
    try:
        learner = rebuild(settings, where, kind, **own)
        with seeded(learner.seed, "load"):
            encoder = learner.domain.encoder()
            if settings["width"] is not None:
                head = make_head(learner.head, settings["width"])
                encoder = EncoderWithHead(encoder, head, settings["width"])
        if problems := misfits(contents["encoder"], encoder.state_dict()):
            misfit = f"do not fit the domain's encoder: {'; '.join(problems)}"
            raise ValueError(f"the weights in {file.parent} {misfit}")
        encoder.load_state_dict(contents["encoder"], strict=False)
        learner._encoder = encoder.to(learner.engine.device).eval()
        learner.version, learner.space = settings["version"], settings["space"]
        learner.links = unpack(contents["links"], settings["links"])
        learner.schedule_state = contents["schedule"]
        threshold = settings["threshold"]
        learner.memory = replace(
            learner.memory,
            arrivals=settings["arrivals"],
            elsewhere=settings["elsewhere"],
            threshold=float("inf") if threshold is None else threshold,
            **_items(contents.get("memory"), learner.domain),
        )
    except (KeyError, TypeError) as error:
        raise _damaged(file, repr(error)) from error
    return learner


def read_links(folder: Path) -> tuple[Link, ...]:
    """The maps between versions in what ``write`` wrote."""
    settings = _read_settings(folder / SETTINGS)
    return unpack(_tensors_of(folder / "links.safetensors"), settings["links"])


def describe(learner: "Learner") -> dict[str, Any]:
    """Everything about a learner except its weights and items, as JSON."""
    memory: Memory = learner.memory
    encoder = learner._encoder
    return {
        "version": learner.version,
        "space": learner.space,
        "links": pack(learner.links)[1],
        "seed": learner.seed,
        "precision": learner.engine.precision,
        "micro_batch_size": learner.engine.micro_batch_size,
        "compile": learner.engine.compile,
        "keep_neighbours": learner.keep_neighbours,
        "width": encoder.width if isinstance(encoder, EncoderWithHead) else None,
        **encode({part: getattr(learner, part) for part in PARTS} | {"policy": memory.policy}),
        "arrivals": memory.arrivals,
        "elsewhere": memory.elsewhere,
        "threshold": None if memory.threshold == float("inf") else memory.threshold,
    }


def rebuild(settings: dict[str, Any], file: Path, kind: type[L], **own: Unpack["Own"]) -> L:
    """The learner that ``describe`` described, without weights and items."""
    passed: dict[str, Any] = {name: part for name, part in own.items() if part is not None}
    trust = passed.pop("trust", False)
    if "domain" in passed:
        passed["initial_domain"] = passed["domain"]
        passed["domain"] = completed(passed["domain"], settings["domain"])
    if "fabric" not in passed:
        passed["precision"] = settings["precision"]
    saved = {part: settings[part] for part in PARTS} | {"memory": settings["policy"]}
    saved = {name: part for name, part in saved.items() if name not in passed}
    check_trust(saved, trust, file)
    if saved.get("initial_domain") == saved.get("domain"):
        saved.pop("initial_domain", None)
    parts = decode(saved, file) | passed
    domain = parts.pop("domain")
    initial_domain = parts.pop("initial_domain", domain)
    try:
        learner = kind(
            domain,
            seed=settings["seed"],
            micro_batch_size=settings["micro_batch_size"],
            # Earlier releases did not save these.
            keep_neighbours=settings.get("keep_neighbours"),
            compile=settings.get("compile", False),
            **parts,
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from error
    learner.initial_domain = initial_domain
    return learner


def _check_free(folder: Path) -> None:
    """Refuse a folder with other files than those of a learner."""
    check_outside(folder)
    names = [file.name for file in folder.iterdir()] if folder.is_dir() else []
    ours = SETTINGS in names or all(map(_OURS.fullmatch, names))
    if not ours or (folder.exists() and not folder.is_dir()):
        raise FileExistsError(f"{folder} is not a saved learner: choose an empty or a new folder")


def _settings(learner: "Learner") -> dict[str, Any]:
    return {"format": FORMAT, "incontrast": __version__, **describe(learner)}


def _read_settings(file: Path) -> dict[str, Any]:
    if not file.exists():
        raise FileNotFoundError(f"{file} is missing: {file.parent} holds no saved learner")
    try:
        settings: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        found = settings["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(file, repr(error)) from error
    if found != FORMAT:
        writer = settings.get("incontrast", "unknown")
        raise ValueError(
            f"{file} has format {found}, incontrast {__version__} reads format {FORMAT}: use the "
            f"version that wrote it ({writer}), or fit again"
        )
    return settings


def _tensors(learner: "Learner") -> dict[str, dict[str, Tensor]]:
    # Cloned, because safetensors refuses weights that share memory.
    state = learner.encoder.state_dict()
    weights = {name: value.clone().contiguous() for name, value in state.items()}
    links, _ = pack(learner.links)
    return {"encoder": weights, "schedule": learner.schedule_state, "links": links}


def _tensors_of(file: Path, *, verify: bool = False) -> dict[str, Tensor]:
    """The tensors in a file; ``verify`` compares its hash with its name."""
    try:
        data = file.read_bytes()
        if verify and (digest := _digest(data)) != file.stem.rpartition("-")[2]:
            raise _damaged(file, f"its hash is {digest}")
        return deserialise(data)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{file} is missing: the saved learner is not whole") from error


def _memory_tensors(domain: Domain, memory: Memory) -> dict[str, Tensor]:
    indices = torch.arange(len(memory))
    blobs = [] if memory.items is None else domain.pack(memory.items, indices)
    return {
        **{name: getattr(memory, name) for name in COLUMNS},
        "sizes": torch.tensor([len(blob) for blob in blobs], dtype=torch.int64),
        "items": torch.from_numpy(np.frombuffer(b"".join(blobs), dtype=np.uint8).copy()),
    }


def _items(tensors: dict[str, Tensor] | None, domain: Domain) -> dict[str, Any]:
    """The fields of a memory that ``_memory_tensors`` made tensors of."""
    if tensors is None:
        return {}
    raw = tensors["items"].numpy().tobytes()
    ends = tensors["sizes"].cumsum(0).tolist()
    blobs = [raw[start:end] for start, end in pairwise([0, *ends])]
    columns = {name: tensors[name] for name in COLUMNS}
    return {"items": domain.unpack(blobs) if blobs else None, **columns}


def _checksum(settings: dict[str, Any]) -> str:
    covered = {name: value for name, value in settings.items() if name != "checksum"}
    return _digest(json.dumps(covered, sort_keys=True).encode())


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _damaged(file: Path, reason: object) -> ValueError:
    return ValueError(f"{file} is damaged ({reason}): restore it from a copy")
