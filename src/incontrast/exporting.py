"""An encoder for other programs: ONNX, ``torch.export``, or plain weights as safetensors."""

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
CHECKED = 100  # items on which the exported encoder is compared with the original
TOLERANCE = 1e-4


class Exported(nn.Module):
    """Maps collected items to embeddings."""

    def __init__(self, encoder: nn.Module, domain: Domain, normalized: bool) -> None:
        super().__init__()
        self.encoder, self.domain, self.normalized = encoder, domain, normalized

    def forward(self, items: Tensor) -> Tensor:
        embeddings: Tensor = self.encoder(self.domain.prepare(items))
        return normalize(embeddings) if self.normalized else embeddings


def export(learner: "Learner", file: str | Path, *, normalized: bool = False) -> dict[str, Any]:
    """Write the encoder of a learner for programs without incontrast.

    ``.onnx`` and ``.pt2`` (``torch.export``) take any number of items: images as uint8 pixels
    (n, channels, size, size), vectors as float32 (n, dim); they standardise them like the domain.
    ``.safetensors`` has the encoder's ``state_dict``. The file is read back and compared.

    Args:
        learner: Fitted.
        file: Where to; its ending determines the format.
        normalized: Give unit vectors.

    Returns:
        The file, its format, the number of items compared, and the largest difference.

    Raises:
        ValueError: The format is unknown, the file would be in a workspace, the items are not
            tensors of one shape, or the exported encoder gives other embeddings.
    """
    file = Path(file)
    if file.suffix not in FORMATS:
        raise ValueError(f"an encoder is exported to {', '.join(FORMATS)}, got {file.name!r}")
    check_outside(file)
    encoder = copy.deepcopy(learner.backbone).cpu().eval()
    count, difference = 0, 0.0
    if file.suffix == ".safetensors":
        if normalized:
            raise ValueError("weights are not normalised: leave it away, or export to .onnx")
        state = {name: value.clone() for name, value in encoder.state_dict().items()}
        write_bytes(file, serialise(state))
    else:
        module = Exported(encoder, learner.domain, normalized).eval()
        count, difference = _write_checked(file, module, _items(learner))
    return {"file": str(file), "format": file.suffix[1:], "items": count, "difference": difference}


def _items(learner: "Learner") -> Tensor:
    """Items to trace and to compare with: from memory, or random ones."""
    domain, memory = learner.domain, learner.memory.items
    draws = torch.Generator().manual_seed(0)
    items: Any = None
    if memory is not None and len(memory) > 1:
        items = memory.take(torch.arange(min(len(memory), CHECKED)))
    elif isinstance(domain, Images):
        shape = (CHECKED, domain.channels, domain.size, domain.size)
        items = torch.randint(256, shape, generator=draws).byte()
    elif isinstance(domain, Vectors):
        items = torch.randn(CHECKED, domain.dim, generator=draws)
    if not isinstance(items, Tensor):
        batches = f"batches of {type(domain).__name__} are not tensors"
        raise ValueError(f"{batches}, so only weights can be exported, to .safetensors")
    return items


@torch.no_grad()
def _write_checked(file: Path, module: nn.Module, items: Tensor) -> tuple[int, float]:
    """Write a module; returns the number of items compared and the largest difference."""
    with TemporaryDirectory() as folder:
        temporary = Path(folder, file.name)
        expected, found = module(items), _written(temporary, module, items)
        difference = 0.0 if found is None else float((found - expected).abs().max())
        if not difference <= TOLERANCE * max(1.0, float(expected.abs().max())):  # or NaN
            error = f"gives embeddings that are off by {difference:.1e}, more than {TOLERANCE:g}"
            raise ValueError(f"the exported encoder {error}: an operation does not translate")
        write_bytes(file, temporary.read_bytes())
    if found is None:
        log.warning('%s is not checked: pip install "incontrast[onnx]" does', file)
    return 0 if found is None else len(items), difference


def _written(file: Path, module: nn.Module, items: Tensor) -> Tensor | None:
    """Embeddings by the written module; None if that needs a library that is not installed."""
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
        # It warns of every operation of packages that are not installed.
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
