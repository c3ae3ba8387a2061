"""GPU names as users write them, one list for all clouds, with aliases and memory sizes. Pure."""

from __future__ import annotations

import re

import msgspec


class GpuChoice(msgspec.Struct, frozen=True):
    """A kind of GPU, or its least memory such as `24GB+`, and the number of them."""

    name: str
    count: int = 1

    def __str__(self) -> str:
        return f"{self.name}:{self.count}"


class GpuModel(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU model: its name, its memory, and other spellings without separators."""

    name: str
    memory_gb: int
    aliases: tuple[str, ...] = ()


GPU_MODELS = (
    GpuModel(name="P4", memory_gb=8),
    GpuModel(name="T4", memory_gb=16),
    GpuModel(name="P100", memory_gb=16),
    GpuModel(name="V100", memory_gb=16, aliases=("V10016GB",)),
    GpuModel(name="V100-32GB", memory_gb=32),
    GpuModel(name="L4", memory_gb=24),
    GpuModel(name="A10G", memory_gb=24, aliases=("A10",)),
    GpuModel(name="A100", memory_gb=40, aliases=("A10040GB",)),
    GpuModel(name="L40S", memory_gb=48),
    GpuModel(name="A100-80GB", memory_gb=80, aliases=("A10080",)),
    GpuModel(name="H100", memory_gb=80, aliases=("H10080GB", "H100MEGA", "H100MEGA80GB")),
    GpuModel(name="RTXPRO6000", memory_gb=96, aliases=("RTXPROSERVER6000", "RTX6000PRO")),
    GpuModel(name="H200", memory_gb=141, aliases=("H200141GB",)),
    GpuModel(name="B200", memory_gb=180, aliases=("B200192GB",)),
    GpuModel(name="B300", memory_gb=268, aliases=("B300288GB",)),
)
_MODELS = {spelling: model for model in GPU_MODELS for spelling in (model.name.replace("-", ""), *model.aliases)}
GPU_NAMES = tuple(model.name for model in GPU_MODELS)
_BY_MEMORY = re.compile(r"(\d+)\s*GB\+", re.IGNORECASE)


def gpu_model(name: str) -> GpuModel | None:
    """Return the model of a name in any spelling: `a100-80gb`, `nvidia-tesla-t4`, `RTX PRO 6000`; None if unknown."""
    plain = re.sub(r"[^A-Z0-9]", "", name.upper())
    return _MODELS.get(re.sub(r"^(NVIDIA)?(TESLA)?", "", plain))


def least_memory_gb(name: str) -> float | None:
    """Return the memory that `24GB+` requests; None for the name of a model."""
    match = _BY_MEMORY.fullmatch(name.strip())
    return float(match[1]) if match else None


def matches_gpu(requested: str, offered: str) -> bool:
    """Return whether a GPU is the requested model, or has the requested memory."""
    memory_gb, model = least_memory_gb(requested), gpu_model(offered)
    if memory_gb is not None:
        return model is not None and model.memory_gb >= memory_gb
    wanted = gpu_model(requested)
    return model is wanted if wanted is not None else requested.lower() == offered.lower()
