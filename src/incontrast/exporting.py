"""An encoder for other programs: ONNX, ``torch.export``, or plain weights as safetensors."""

from __future__ import annotations

import copy
import logging
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save as serialise
from torch import Tensor, nn
from torch.nn.functional import normalize

from incontrast.domains.base import Domain
from incontrast.domains.images import Images
from incontrast.domains.vectors import Vectors
from incontrast.extras import needed
from incontrast.files import check_outside, write_bytes

if TYPE_CHECKING:
    from incontrast.learner import Learner

log = logging.getLogger(__name__)

FORMATS = (".onnx", ".pt2", ".safetensors")
CHECKED = 100  # items on which the written encoder is compared with this one
TOLERANCE = 1e-4


class Exported(nn.Module):
    """Items as the domain collects them in, embeddings out."""

    def __init__(self, encoder: nn.Module, domain: Domain, normalized: bool) -> None:
        super().__init__()
        self.encoder, self.domain, self.normalized = encoder, domain, normalized

    def forward(self, items: Tensor) -> Tensor:
        embeddings: Tensor = self.encoder(self.domain.prepare(items))
        return normalize(embeddings) if self.normalized else embeddings


def export(learner: Learner, file: str | Path, *, normalized: bool = False) -> dict[str, Any]:
    """Write the encoder of a learner, for programs that do not have incontrast.

    ``.onnx`` and ``.pt2`` (``torch.export``) take any number of items, images as uint8 pixels
    (n, channels, size, size), vectors as float32 (n, dim), and standardise them as the domain does.
    ``.safetensors`` has the encoder's ``state_dict``. What is written is read back and compared.

    Args:
        learner: Fitted.
        file: Where to; its ending says what.
        normalized: Give unit vectors.

    Returns:
        What was written: the largest difference on the items it was compared on, and their number.

    Raises:
        ValueError: The ending is none of these, the file would be in a workspace, the items are no
            tensors of one shape, or what was written gives other embeddings.
    """
    file = Path(file)
    if file.suffix not in FORMATS:
        raise ValueError(f"an encoder is exported to {', '.join(FORMATS)}, got {file.name!r}")
    check_outside(file)
    encoder = copy.deepcopy(learner.backbone).cpu().eval()
    if file.suffix == ".safetensors":
        if normalized:
            raise ValueError("weights are not normalised: leave it away, or export to .onnx")
        state = {name: value.clone() for name, value in encoder.state_dict().items()}
        write_bytes(file, serialise(state))
        return _told(file, 0, 0.0)
    module = Exported(encoder, learner.domain, normalized).eval()
    items = _items(learner)
    with torch.no_grad(), TemporaryDirectory() as folder:
        expected, beside = module(items), Path(folder, file.name)
        found = _written(module, items, beside)
        difference = 0.0 if found is None else float((found - expected).abs().max())
        # NaN is no less than any bound, and no more.
        if not difference <= TOLERANCE * max(1.0, float(expected.abs().max())):
            raise ValueError(
                f"what was written gives embeddings that are off by {difference:.1e}, more than "
                f"{TOLERANCE:g}: an operation of this encoder does not translate"
            )
        write_bytes(file, beside.read_bytes())
    if found is None:
        log.warning('%s is not checked: pip install "incontrast[onnx]" does', file)
    return _told(file, 0 if found is None else len(items), difference)


def _told(file: Path, items: int, difference: float) -> dict[str, Any]:
    return {"file": str(file), "format": file.suffix[1:], "items": items, "difference": difference}


def _items(learner: Learner) -> Tensor:
    """Items to trace and to compare by: some that memory holds, or such as could be."""
    domain, memory = learner.domain, learner.memory.items
    if memory is not None and len(memory) > 1:
        items = memory.take(torch.arange(min(len(memory), CHECKED)))
    elif isinstance(domain, Images):
        shape = (CHECKED, domain.channels, domain.size, domain.size)
        items = torch.randint(256, shape, generator=torch.Generator().manual_seed(0)).byte()
    elif isinstance(domain, Vectors):
        items = torch.randn(CHECKED, domain.dim, generator=torch.Generator().manual_seed(0))
    else:
        items = None
    if not isinstance(items, Tensor):
        raise ValueError(
            f"{type(domain).__name__} has batches that are no tensor, which cannot be exported: "
            "write the weights to .safetensors"
        )
    return items


def _written(module: nn.Module, items: Tensor, file: Path) -> Tensor | None:
    """Write a module; returns what the file makes of the items, None if nothing here can run it."""
    shapes = {"items": {0: torch.export.Dim("n")}}
    if file.suffix == ".pt2":
        program = torch.export.export(module, (items,), dynamic_shapes=shapes)
        torch.export.save(program, file)
        loaded: Tensor = torch.export.load(file).module()(items)
        return loaded
    with needed("ONNX needs onnxscript", "onnx"):
        import onnxscript  # noqa: F401
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about versions of operations
        # It warns of every operation of packages that are not there.
        logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
        torch.onnx.export(
            module,
            (items,),
            str(file),
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=["items"],
            output_names=["embeddings"],
            external_data=False,
            verbose=False,
        )
    try:
        import onnxruntime
    except ImportError:
        return None
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (found,) = session.run(["embeddings"], {"items": items.numpy()})
    return torch.from_numpy(found)
