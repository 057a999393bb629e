"""What the fitting benches learn is what the package computes."""

import numpy as np
import pytest

from edgemem.runtime.encoder import Encoder
from edgemem.stages import update

pytest.importorskip("torch", reason="needs edgemem-runtime[train]")
pytestmark = pytest.mark.train
PAIRS = [
    ("Ana lives in Oslo.", "Ana moved to Bergen."),
    ("Rex is a dog.", "Rex is a brown dog."),
]


def rounded(module):
    """Random parameters that float16 keeps."""
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_((torch.randn_like(parameter) / 20).half())


def test_the_fitted_layers_are_those_that_read():
    import torch

    from bench.lora import Encoder as Fitted
    from bench.lora import padded

    fitted, encoder = Fitted().eval(), Encoder.load()
    rounded(fitted)
    expert = {name: x.astype(np.float32) for name, x in fitted.exported().items()}
    with torch.no_grad():  # both at once, so that one is padded
        layers = torch.stack(fitted(*padded([encoder.encode(*pair) for pair in PAIRS])))
    for i, pair in enumerate(PAIRS):
        read = encoder.read(expert, *pair)
        assert np.allclose(layers[:, i, : len(read.text)].numpy(), read.layers, atol=1e-3)


def test_a_pair_is_judged_as_it_was_learned(monkeypatch):
    import torch

    from bench.fit_updates import Net

    net, encoder = Net().eval(), Encoder.load()
    rounded(net)
    kept = {name: x.astype(np.float32) for name, x in net.exported().items()}
    monkeypatch.setattr(update, "expert", lambda _: kept)
    with torch.no_grad():
        wanted = net([encoder.encode(*pair) for pair in PAIRS]).softmax(-1).numpy()
    for pair, chances in zip(PAIRS, wanted, strict=True):
        found = update.probabilities(encoder, *pair)
        assert np.allclose([found[event] for event in update.EVENTS], chances, atol=1e-4)
