"""States with tensors of PyTorch and arrays of JAX: saved without pickle and restored unchanged."""

from __future__ import annotations

import collections
import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make frameworks")

import outlast  # noqa: E402
from outlast.trainer.decode import Malformed, decode  # noqa: E402
from outlast.trainer.encode import UnsavableState, encode  # noqa: E402
from outlast.trainer.integrations.torch import Loop  # noqa: E402
from outlast.trainer.tensors import _DTYPES  # noqa: E402


def back(value: Any) -> Any:
    body, buffers = encode(value)
    return decode(bytes(body), [memoryview(bytearray(buffer.view())) for buffer in buffers])


def bits(tensor: Any) -> bytes:
    raw: bytes = tensor.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return raw


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", sorted(_DTYPES))
def test_tensors_of_every_type_and_layout_are_restored(name: str) -> None:
    flat = torch.arange(12).to(getattr(torch, name))
    square = flat.reshape(3, 4)
    for tensor in (flat, square, square.T, flat[3:7], flat[0], flat[:0], square[:, 1]):
        again = back({"t": tensor})["t"]
        assert (again.dtype, again.shape, bits(again)) == (tensor.dtype, tensor.shape, bits(tensor))


def test_layouts_gradients_and_parameters_are_restored() -> None:
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert back(image).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(back(image), image)
    assert torch.equal(back(torch.ones(3).expand(4, 3)), torch.ones(4, 3))
    conjugate = torch.randn(5, dtype=torch.complex64).conj()
    assert torch.equal(back(conjugate), conjugate)
    parameter = back(torch.nn.Parameter(torch.ones(3), requires_grad=False))
    assert (type(parameter), parameter.requires_grad) == (torch.nn.Parameter, False)
    assert back(torch.ones(2, requires_grad=True)).requires_grad
    others = [torch.float8_e5m2, torch.device("cuda:1"), torch.Size((2, 3))]
    assert back(others) == others


def test_tied_tensors_stay_tied_and_a_slice_does_not_include_the_full_tensor() -> None:
    weight = torch.nn.Parameter(torch.randn(2000))
    body, buffers = encode([weight.detach(), weight.detach()])
    assert len(buffers) == 1
    one, other = decode(bytes(body), [memoryview(bytearray(buffers[0].view()))])
    one[0] = 7.0
    assert other[0] == 7.0
    whole = torch.randn(100_000)
    body, buffers = encode([whole[:2], whole[1:3]])
    assert not buffers
    assert len(body) < 300


def parts() -> dict[str, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedules = torch.optim.lr_scheduler
    return {
        "model": model,
        "optimizer": optimizer,
        "cosine": schedules.CosineAnnealingLR(optimizer, 9),
        "cycle": schedules.OneCycleLR(optimizer, 0.1, 90),
        "plateau": schedules.ReduceLROnPlateau(optimizer),
        "lambda": schedules.LambdaLR(optimizer, lambda step: 0.9**step),
        "scaler": torch.amp.GradScaler("cpu"),
    }


def test_a_loop_with_schedules_and_a_scaler_is_saved_without_pickle(tmp_path: Path) -> None:
    run = outlast.training(folder=str(tmp_path))
    every = parts()
    every["model"](torch.randn(5, 3)).sum().backward()
    every["optimizer"].step()
    every["cosine"].step()
    run.save(1, Loop(run, **every).state(1), wait=True)
    assert list(tmp_path.rglob("state.bin"))
    assert not list(tmp_path.rglob("*.pickle"))
    expected = {name: copy.deepcopy(part.state_dict()) for name, part in every.items()}
    fresh = parts()
    assert Loop(run, **fresh).restore() == 1
    run.close()
    assert fresh["model"].state_dict().keys() == expected["model"].keys()
    assert fresh["model"].state_dict()._metadata == expected["model"]._metadata
    for name, tensor in expected["model"].items():
        assert torch.equal(fresh["model"].state_dict()[name], tensor)
    assert str(fresh["optimizer"].state_dict()) == str(expected["optimizer"])
    for name in ("cosine", "cycle", "plateau", "lambda", "scaler"):
        assert fresh[name].state_dict() == expected[name]


def test_a_state_dict_includes_the_versions_of_modules() -> None:
    saved = parts()["model"].state_dict()
    again = back(saved)
    assert type(again) is collections.OrderedDict
    assert again._metadata == saved._metadata


def test_generators_continue_after_a_restore() -> None:
    generator = torch.Generator().manual_seed(4)
    torch.rand(3, generator=generator)
    again = back(generator)
    assert torch.equal(torch.rand(5, generator=again), torch.rand(5, generator=generator))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: torch.sparse_coo_tensor([[0]], [1.0], (3,)), "to_dense"),
        (lambda: torch.empty(3, device="meta"), "meta device"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "qint8"),
        (lambda: torch.nn.Linear(1, 1), "state_dict"),
    ],
)
def test_tensors_without_a_plain_form_are_named(make: Any, why: str) -> None:
    with pytest.raises(UnsavableState) as refused:
        encode({"a": [make()]})
    assert refused.value.message.startswith('state["a"][0] cannot be saved without pickle')
    assert why in refused.value.message + refused.value.hint


@pytest.mark.parametrize("at", range(0, 400, 3))
def test_a_mutated_stream_with_tensors_is_refused_or_decoded(at: int) -> None:
    image = torch.randn(2, 3, 2, 2).to(memory_format=torch.channels_last)
    body, buffers = encode(
        {"a": image, "b": torch.nn.Parameter(torch.randn(3)), "g": torch.ones(2).bool(), "c": image.mT}
    )
    mutable = bytearray(body)
    for value in (0, 1, 0x3D, 0x7F, 0xFF):
        mutable[16 + at % (len(mutable) - 16)] = value
        try:
            decode(bytes(mutable), [memoryview(bytearray(buffer.view())) for buffer in buffers])
        except Malformed:
            pass


def test_a_lightning_checkpoint_that_would_run_code_is_refused(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed: make frameworks")
    from outlast.trainer.integrations.lightning import ckpt_path

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def training_step(self, batch: Any, index: int) -> Any: ...

        def configure_optimizers(self) -> None: ...

    class Hostile:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "code ran",)

    run = outlast.training(folder=str(tmp_path))
    run.save(1, into=lambda folder: torch.save({"state_dict": Hostile()}, Path(folder, "lightning.ckpt")))
    trainer = lightning.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, accelerator="cpu")
    with pytest.raises(Exception, match=r"[Ww]eights.only"):
        trainer.fit(Module(), torch.utils.data.DataLoader([torch.ones(1)]), ckpt_path=ckpt_path(run))
    run.close()
    assert not (tmp_path / "code ran").exists()


def test_arrays_of_jax_are_restored() -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    for array in (jax.numpy.arange(5.0), jax.numpy.ones((2, 3), jax.numpy.bfloat16), jax.random.PRNGKey(3)):
        again = back({"a": array})["a"]
        assert isinstance(again, jax.Array)
        assert (again.dtype, again.shape, again.tolist()) == (array.dtype, array.shape, array.tolist())
    with pytest.raises(UnsavableState) as refused:
        encode(jax.random.key(0))
    assert "jax.random.key_data(state)" in refused.value.hint
