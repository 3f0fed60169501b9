"""Keep a self-supervised encoder up to date.

>>> import torch, incontrast as ic
>>> learner = ic.Learner(ic.Vectors(8), fit_strategy=ic.Retrain(max_epochs=3), seed=0)
>>> outcome = learner.fit(torch.randn(100, 8))
>>> outcome = learner.update(torch.randn(20, 8) + 1.0)
>>> outcome.forward_passes
23520

Names are listed in ``__init__.pyi`` and imported when they are first used, so that
``incontrast --help`` need not wait for torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
