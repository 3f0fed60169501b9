"""What processes exchange, as far as it can be seen in one."""

import pytest
import torch

from incontrast.loss import Objective
from incontrast.training import collectives
from incontrast.training.collectives import Buckets


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum over one process."""
    monkeypatch.setattr(collectives, "SMALL", 2**40)
    monkeypatch.setattr(collectives, "all_reduce_", lambda tensor: tensor)


def test_averaged_gradients_keep_their_layout() -> None:
    images = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    parameters = [images.requires_grad_(), torch.randn(5, requires_grad=True)]
    buckets = Buckets(2)
    wanted = []
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)  # in the layout of the parameter
        wanted.append(parameter.grad / 2)
        buckets.add(parameter)
    buckets.finish()
    for parameter, gradient in zip(parameters, wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
        assert parameter.grad.stride() == parameter.stride()


def test_gradients_of_several_dtypes_share_a_bucket() -> None:
    parameters = [torch.ones(2, requires_grad=True), torch.ones(3).double().requires_grad_()]
    buckets = Buckets(4)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
        buckets.add(parameter)
    buckets.finish()
    for parameter in parameters:
        torch.testing.assert_close(parameter.grad, torch.full_like(parameter, 0.25))


def test_processes_share_no_losses_of_ones_own() -> None:
    fabric = pytest.importorskip("incontrast.training.fabric")

    class Own(Objective):
        pass

    own = Own()
    assert fabric.FabricEngine.objective(None, own) is own
    assert isinstance(fabric.FabricEngine.objective(None, Objective()), fabric.SharedObjective)
