"""Prices: SKU texts of Google's catalogue, dated figures by region and family, guesses, GPU names of all clouds."""

from __future__ import annotations

import pytest

from outlast.clouds.aws.price_figures import on_demand_figure, spot_figure
from outlast.clouds.cloud import Requirements
from outlast.clouds.gcp.prices import PriceBook, PricedMachine, Rates
from outlast.clouds.gcp.skus import identify, key
from outlast.clouds.gcp.types import MachineKind, accelerators, matching_kinds
from outlast.spec.gpus import GPU_NAMES, gpu_model, matches_gpu

# Descriptions as Google's billing catalogue has them.
SKUS = {
    "Nvidia Tesla T4 GPU running in Americas": ("nvidia-tesla-t4", "gpu", "on-demand"),
    "Nvidia Tesla T4 GPU attached to Spot Preemptible VMs running in Warsaw": ("nvidia-tesla-t4", "gpu", "spot"),
    "Nvidia Tesla P4 GPU running in Iowa": ("nvidia-tesla-p4", "gpu", "on-demand"),
    "Nvidia Tesla P100 GPU running in Americas": ("nvidia-tesla-p100", "gpu", "on-demand"),
    "Nvidia Tesla V100 GPU running in Americas": ("nvidia-tesla-v100", "gpu", "on-demand"),
    "Nvidia L4 GPU attached to Spot Preemptible VMs running in Virginia": ("nvidia-l4", "gpu", "spot"),
    "Nvidia Tesla A100 GPU running in Americas": ("nvidia-tesla-a100", "gpu", "on-demand"),
    "Nvidia Tesla A100 80GB GPU running in Americas": ("nvidia-a100-80gb", "gpu", "on-demand"),
    "Nvidia Tesla A100 80GB GPU attached to DWS Defined Duration VMs running in Americas": (
        "nvidia-a100-80gb",
        "gpu",
        "flex",
    ),
    "Nvidia H100 80GB GPU attached to Spot Preemptible VMs running in Americas": ("nvidia-h100-80gb", "gpu", "spot"),
    "Nvidia H100 80GB Mega GPU running in Frankfurt": ("nvidia-h100-mega-80gb", "gpu", "on-demand"),
    "Nvidia H100 80GB Plus GPU running in Americas": ("nvidia-h100-mega-80gb", "gpu", "on-demand"),
    "H200 141GB GPU running in Belgium": ("nvidia-h200-141gb", "gpu", "on-demand"),
    "A4 Nvidia B200 (1 gpu slice) running in Netherlands": ("nvidia-b200", "gpu", "on-demand"),
    "RTX 6000 96GB running in Oregon": ("nvidia-rtx-pro-6000", "gpu", "on-demand"),
    "RTX 6000 96GB attached to Spot Preemptible VMs running in Belgium": ("nvidia-rtx-pro-6000", "gpu", "spot"),
    "Compute optimized Core running in Americas": ("c2", "cpu", "on-demand"),
    "Spot Preemptible Compute optimized Instance Core running in Johannesburg": ("c2", "cpu", "spot"),
    "C4 Instance Core running in Tokyo": ("c4", "cpu", "on-demand"),
    "C4D Instance Ram running in Mumbai": ("c4d", "memory", "on-demand"),
    "Memory-optimized Instance Ram running in Tokyo": ("m1", "memory", "on-demand"),
    "M3 Memory-optimized Instance Core running in Americas": ("m3", "cpu", "on-demand"),
    "G4 Instance Core running in Iowa": ("g4", "cpu", "on-demand"),
    "N1 Predefined Instance Core running in Americas": ("n1", "cpu", "on-demand"),
    "Spot Preemptible A3 Instance Ram running in Americas": ("a3", "memory", "spot"),
    "DWS Defined Duration A2 Core running in Americas": ("a2", "cpu", "flex"),
    "T2D AMD Instance Core running in Americas": ("t2d", "cpu", "on-demand"),
}
OTHER_SKUS = (
    "Commitment v1: A4 Nvidia B200 (1 gpu slice) in Americas for 1 Year",
    "Nvidia Tesla T4 GPU attached to Sole Tenancy VMs running in Americas",
    "Nvidia L4 Virtual Workstation GPU running in Netherlands",
    "Memory Optimized Upgrade Premium for Memory-optimized Instance Ram running in Tokyo",
    "N2 Custom Extended Instance Ram running in Americas",
    "Sole Tenancy Instance Ram running in Jakarta",
    "C4D Instance Local SSD running in Americas",
    "1/8 vGPU no lssd running in Iowa",
    "Reserved Nvidia H100 80GB Mega GPU in Frankfurt",
)


@pytest.mark.parametrize("description", SKUS)
def test_the_catalogue_s_texts_are_identified(description: str) -> None:
    assert identify(description) == SKUS[description]


@pytest.mark.parametrize("description", OTHER_SKUS)
def test_other_skus_are_no_prices_of_machines(description: str) -> None:
    assert identify(description) is None


@pytest.mark.parametrize("name", GPU_NAMES)
def test_each_gpu_of_google_cloud_has_an_identified_sku(name: str) -> None:
    for accelerator in accelerators(name):
        assert any(found[0] == accelerator for found in SKUS.values()), accelerator


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("a100-80gb", "A100-80GB"),
        ("nvidia-tesla-a100", "A100"),
        ("NVIDIA-A100-80GB", "A100-80GB"),
        ("RTX PRO Server 6000", "RTXPRO6000"),
        ("nvidia-h200-141gb", "H200"),
        ("h100", "H100"),
    ],
)
def test_spellings_of_users_and_clouds_have_one_name(spelling: str, name: str) -> None:
    model = gpu_model(spelling)
    assert model is not None
    assert model.name == name


def test_a_request_by_memory_matches_larger_gpus_only() -> None:
    assert [name for name in GPU_NAMES if matches_gpu("80GB+", name)] == [
        "A100-80GB",
        "H100",
        "RTXPRO6000",
        "H200",
        "B200",
        "B300",
    ]


def machine(type: str, cpus: float, memory_gb: float, accelerator: str = "", count: float = 0) -> PricedMachine:
    return PricedMachine(type=type, cpus=cpus, memory_gb=memory_gb, accelerator=accelerator, count=count)


@pytest.mark.parametrize(
    ("priced", "region", "spot", "usd"),
    [
        (machine("a2-highgpu-1g", 12, 85, "nvidia-tesla-a100", 1), "us-central1", False, 3.67339),
        (machine("a2-highgpu-1g", 12, 85, "nvidia-tesla-a100", 1), "us-central1", True, 2.12081),
        (machine("a2-ultragpu-1g", 12, 170, "nvidia-a100-80gb", 1), "us-central1", True, 2.90322),
        (machine("a3-highgpu-8g", 208, 1872, "nvidia-h100-80gb", 8), "us-central1", True, 52.6991),
        (machine("m1-ultramem-40", 40, 961), "us-central1", False, 6.2931),
    ],
)
def test_figures_are_those_of_region_and_family(priced: PricedMachine, region: str, spot: bool, usd: float) -> None:
    found = PriceBook("/nowhere").price(priced, region, "spot" if spot else "on-demand")
    assert found.usd_per_hour == pytest.approx(usd, rel=0.002)
    assert not found.guessed
    assert "built-in prices of" in found.source


def test_a_family_without_figures_has_a_guessed_price() -> None:
    found = PriceBook("/nowhere").price(machine("a9-mega-8g", 208, 1872, "nvidia-x1", 8), "us-central1", "on-demand")
    assert found.guessed
    assert found.source.startswith("guessed")


def test_a_machine_is_priced_by_the_catalogue_only_if_each_part_is_in_it() -> None:
    book = PriceBook("/nowhere")
    rates = {key("us-east1", "g2", "cpu", "spot"): 0.01, key("us-east1", "g2", "memory", "spot"): 0.001}
    book._rates = Rates(fetched_at=1.0, usd_per_hour=rates)
    l4 = machine("g2-standard-4", 4, 16, "nvidia-l4", 1)
    assert "built-in" in book.price(l4, "us-east1", "spot").source
    book._rates = Rates(fetched_at=1.0, usd_per_hour={**rates, key("us-east1", "nvidia-l4", "gpu", "spot"): 0.3})
    found = book.price(l4, "us-east1", "spot")
    assert found.usd_per_hour == pytest.approx(0.04 + 0.016 + 0.3)
    assert "billing catalogue" in found.source
    assert found.at == 1.0


def test_the_sku_of_a_gpu_slice_is_the_price_of_the_whole_machine() -> None:
    book = PriceBook("/nowhere")
    book._rates = Rates(fetched_at=1.0, usd_per_hour={key("us-central1", "nvidia-b200", "gpu", "on-demand"): 11.0})
    found = book.price(machine("a4-highgpu-8g", 224, 3968, "nvidia-b200", 8), "us-central1", "on-demand")
    assert found.usd_per_hour == pytest.approx(88.0)


def test_figures_of_ec2_are_regional_and_guesses_say_so() -> None:
    assert on_demand_figure("m6i.large", "us-east-1", cpus=2) == (pytest.approx(0.096), False)
    assert on_demand_figure("m6i.large", "eu-central-1", cpus=2) == (pytest.approx(0.115, rel=0.01), False)
    assert on_demand_figure("m99x.large", "us-east-1", cpus=2) is not None
    assert on_demand_figure("m99x.large", "us-east-1", cpus=2)[1]  # type: ignore[index]
    assert on_demand_figure("p99.large", "us-east-1", cpus=2) is None
    spot = spot_figure("p5.48xlarge", "us-east-1", cpus=192)
    assert spot is not None
    assert 10 < spot <= 55.04


def test_types_that_google_lists_are_chosen_by_their_gpu() -> None:
    listed = [
        MachineKind(type="a3-ultragpu-8g", cpus=224, memory_gb=2952, accelerator="nvidia-h200-141gb", count=8),
        MachineKind(type="a9-x-1g", cpus=10, memory_gb=100, accelerator="nvidia-z9", count=1),
        MachineKind(type="g4-standard-6", cpus=6, memory_gb=22, accelerator="nvidia-rtx-pro-6000", count=1),
    ]
    assert [kind.type for kind in matching_kinds(Requirements(gpu="H200", gpus=8), listed)] == ["a3-ultragpu-8g"]
    assert [kind.type for kind in matching_kinds(Requirements(gpu="nvidia-z9"), listed)] == ["a9-x-1g"]
    assert matching_kinds(Requirements(gpu="RTXPRO6000"), listed) == []
