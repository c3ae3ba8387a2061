"""Instance types of EC2 that match a request, from EC2's own list of the region, cached for a day."""

from __future__ import annotations

import difflib
import fnmatch
import os
import threading
import time
from collections.abc import Iterable

import msgspec

from outlast.cachefile import read_cache, write_cache
from outlast.clouds.aws.client import AwsClient
from outlast.clouds.aws.errors import Doc
from outlast.clouds.aws.price_figures import on_demand_figure
from outlast.clouds.cloud import Requirements
from outlast.errors import BadRequest, CloudError
from outlast.spec.gpus import GPU_NAMES, gpu_model, least_memory_gb, matches_gpu

_FRESH_S = 86400.0
# The most matching types whose prices are requested, and the highest price among them as a multiple of the lowest.
_KINDS_MAX, _DEARER_MAX = 12, 2.5
# Patterns of the types to choose from: with and without GPUs.
_WITH_GPU, _WITHOUT = ("g*", "p*"), ("c*", "m*", "r*")
# Types that are used by name only: the driver of the default GPU image does not support their GPUs.
_BY_NAME = ("p2.*", "p3.*", "p3dn.*", "g3*.*", "*.metal*", "*-*.metal*")
_FILTERS = {
    "processor-info.supported-architecture": ["x86_64"],
    "current-generation": ["true"],
    "bare-metal": ["false"],
    "hypervisor": ["nitro"],
    "burstable-performance-supported": ["false"],
}


class InstanceType(msgspec.Struct, frozen=True):
    name: str
    cpus: float
    memory_gb: float
    gpu: str = ""
    gpus: int = 0


class _Stored(msgspec.Struct, kw_only=True):
    """The cache file of a region."""

    endpoint: str
    # `gpu` or `cpu` → when it was fetched, and the types.
    lists: dict[str, tuple[float, list[InstanceType]]] = {}


class AwsTypes:
    """The instance types of one region."""

    def __init__(self, client: AwsClient, folder: str = "~/.outlast/cache") -> None:
        self._client = client
        self._lock = threading.Lock()
        self._path = os.path.join(os.path.expanduser(folder), f"aws-types-{client.region}.json")
        self._endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
        self._named: dict[str, InstanceType] = {}

    def matching(self, needs: Requirements) -> list[InstanceType]:
        """Return the types that match, cheapest first by list prices. Raises BadRequest for an unknown type or GPU."""
        if needs.type:
            return [self.kind(needs.type)]
        fitting = [kind for kind in self._listed(gpu=bool(needs.gpu or needs.gpus)) if _fits(kind, needs)]
        if not fitting and needs.gpu and not _is_known(needs.gpu):
            near = difflib.get_close_matches(needs.gpu.upper(), GPU_NAMES, n=4, cutoff=0.4) or GPU_NAMES
            hint = f"did you mean {', '.join(f'`{name}`' for name in near)}? A size such as `24GB+` is allowed, too"
            raise BadRequest(f"outlast does not know the GPU `{needs.gpu}`, and EC2 lists no such GPU", hint=hint)
        priced = sorted(((self._list_price(kind), kind.name, kind) for kind in fitting), key=lambda one: one[:2])
        return [kind for price, _, kind in priced[:_KINDS_MAX] if price <= priced[0][0] * _DEARER_MAX]

    def _list_price(self, kind: InstanceType) -> float:
        found = on_demand_figure(kind.name, self._client.region, cpus=kind.cpus)
        # Types that the figures lack come after the known ones.
        return found[0] if found is not None else float("inf")

    def kind(self, name: str) -> InstanceType:
        """Return any instance type of EC2. Raises BadRequest."""
        with self._lock:
            if name not in self._named:
                try:
                    docs = self._client.ec2("describe_instance_types", InstanceTypes=[name])["InstanceTypes"]
                except BadRequest as problem:
                    raise self._unknown_type(name) from problem
                if not docs:
                    raise self._unknown_type(name)
                self._named[name] = read_type(docs[0])
            return self._named[name]

    def _unknown_type(self, name: str) -> BadRequest:
        stored = read_cache(self._path, _Stored)
        known = [kind.name for _, kinds in stored.lists.values() for kind in kinds] if stored is not None else []
        return unknown("machine type", name, known or ("m6i.large", "c6i.xlarge", "r6i.large", "g6.xlarge"))

    def _listed(self, *, gpu: bool) -> list[InstanceType]:
        which = "gpu" if gpu else "cpu"
        with self._lock:
            stored = read_cache(self._path, _Stored)
            if stored is None or stored.endpoint != self._endpoint:
                stored = _Stored(endpoint=self._endpoint)
            at, kinds = stored.lists.get(which, (0.0, []))
            if kinds and 0 <= time.time() - at < _FRESH_S:
                return kinds
            try:
                kinds = self._fetch(gpu=gpu)
            except CloudError:
                if not kinds:
                    raise
                return kinds  # yesterday's list is good enough
            stored.lists[which] = (time.time(), kinds)
            write_cache(self._path, stored)
            return kinds

    def _fetch(self, *, gpu: bool) -> list[InstanceType]:
        wanted = {**_FILTERS, "instance-type": [f"{pattern}.*" for pattern in (_WITH_GPU if gpu else _WITHOUT)]}
        if not gpu:
            # Local disks cost more, and nothing uses them.
            wanted["instance-storage-supported"] = ["false"]
        filters = [{"Name": name, "Values": values} for name, values in wanted.items()]
        pages = self._client.pages("ec2", "describe_instance_types", "InstanceTypes", Filters=filters)
        docs = [doc for doc in pages if _is_usable(doc, gpu=gpu)]
        return [read_type(doc) for doc in docs]


def _is_usable(doc: Doc, *, gpu: bool) -> bool:
    cards = doc.get("GpuInfo", {}).get("Gpus", [])
    if any(fnmatch.fnmatch(str(doc["InstanceType"]), pattern) for pattern in _BY_NAME):
        return False
    if not gpu:
        return not cards
    # Other vendors need other drivers. A part of a GPU is not the GPU of that name.
    whole = all(float(card.get("GpuPartitionSize", 1.0)) >= 1 for card in cards)
    return bool(cards) and whole and all(card.get("Manufacturer", "NVIDIA") == "NVIDIA" for card in cards)


def read_type(doc: Doc) -> InstanceType:
    """Return a type from EC2's description."""
    cards = doc.get("GpuInfo", {}).get("Gpus", [])
    count = sum(int(card.get("Count", 0)) for card in cards)
    gpu = _gpu_name(cards[0]) if cards else ""
    memory_gb = doc["MemoryInfo"]["SizeInMiB"] / 1024
    return InstanceType(str(doc["InstanceType"]), float(doc["VCpuInfo"]["DefaultVCpus"]), memory_gb, gpu, count)


def _gpu_name(card: Doc) -> str:
    """Return our name of a GPU. EC2 calls A100 with 40 and with 80 GB by one name."""
    name = str(card.get("Name", ""))
    memory_gb = round(float(card.get("MemoryInfo", {}).get("SizeInMiB", 0)) / 1024)
    model = gpu_model(f"{name}-{memory_gb}GB") or gpu_model(name)
    return model.name if model is not None else name


def _is_known(gpu: str) -> bool:
    return gpu_model(gpu) is not None or least_memory_gb(gpu) is not None


def _fits(kind: InstanceType, needs: Requirements) -> bool:
    if kind.cpus not in needs.cpus or kind.memory_gb not in needs.memory_gb:
        return False
    if not needs.gpu and not needs.gpus:
        return not kind.gpu
    right = kind.gpu != "" if not needs.gpu else matches_gpu(needs.gpu, kind.gpu)
    return right and needs.gpus in (0, kind.gpus)


def unknown(what: str, name: str, known: Iterable[str]) -> BadRequest:
    near = difflib.get_close_matches(name, list(known), n=4, cutoff=0.4) or sorted(known)[:8]
    hint = "did you mean " + ", ".join(f"`{one}`" for one in near) + "? AWS_REGION sets the region"
    return BadRequest(f"unknown {what} `{name}` in this AWS region", hint=hint)
