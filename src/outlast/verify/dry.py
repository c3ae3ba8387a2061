"""The steps that cost nothing: identity, rights, network, the semantics of the bucket, prices and quotas."""

from __future__ import annotations

import os
import secrets
import time

from outlast.clouds.cloud import Cloud, HasVerification, Offer, Requirements, VerifyArea
from outlast.errors import Exists
from outlast.spec.requirements import Range
from outlast.store.bucket import Bucket
from outlast.store.parallel import in_parallel
from outlast.verify.result import VerifyStepFailed

_CREATORS, _MB = 16, 4


def findings(cloud: Cloud, area: VerifyArea, *, bucket: str, fine: str, gpu: str = "") -> str:
    """Return `fine`, or fail with all findings of an area."""
    assert isinstance(cloud, HasVerification)
    found = cloud.verify_findings(area, bucket=bucket, gpu=gpu)
    if not found:
        return fine
    raise VerifyStepFailed(
        "; ".join(text for text, _ in found), "; ".join(dict.fromkeys(fix for _, fix in found if fix))
    )


def bucket_semantics(bucket: Bucket) -> str:
    """Check create-only writes, writes to one name in a row, and the speed of both directions."""
    key = f"check/{secrets.token_hex(4)}"

    def create(number: int) -> bool:
        try:
            bucket.create(key, str(number).encode())
            return True
        except Exists:
            return False

    created = sum(in_parallel(create, list(range(_CREATORS))))
    if created != 1:
        raise VerifyStepFailed(f"{created} of {_CREATORS} simultaneous create-only writes succeeded; exactly 1 must")
    for number in range(4):
        bucket.put(f"{key}-again", str(number).encode())
    if bucket.get(f"{key}-again") != b"3":
        raise VerifyStepFailed("a read after a write returned an older object")
    body = os.urandom(_MB * 1_000_000)
    started = time.monotonic()
    bucket.put(f"{key}-large", body)
    sent = time.monotonic()
    if bucket.get(f"{key}-large") != body:
        raise VerifyStepFailed(f"an object of {_MB} MB came back changed")
    up, down = _MB / max(sent - started, 1e-3), _MB / max(time.monotonic() - sent, 1e-3)
    bucket.delete_many([key, f"{key}-again", f"{key}-large"])
    return f"1 of {_CREATORS} simultaneous creates won; {up:.1f} MB/s up, {down:.1f} MB/s down"


def choose_offer(cloud: Cloud, *, region: str, gpu: str, gpus: int) -> Offer:
    """Return the cheapest spot offer for the verification's machines. Raises VerifyStepFailed."""
    size = Range() if gpu else Range(low=2)
    needs = Requirements(
        cpus=size,
        memory_gb=Range() if gpu else Range(low=2.0),
        gpu=gpu,
        gpus=gpus,
        zones=(region,) if region else (),
    )
    offers = cloud.offers(needs)
    if not offers:
        what = f"{gpu}:{gpus}" if gpu else "2 CPUs"
        raise VerifyStepFailed(
            f"no spot machine with {what} is offered in {region or 'any region'}", "name another --region"
        )
    return offers[0]


def price_text(offer: Offer) -> str:
    """Describe the price of the chosen offer. Raises VerifyStepFailed for a guess."""
    where = f"{offer.type} in {offer.zone}: ${offer.price_usd_per_hour:.4f}/h spot"
    if offer.price_guessed:
        raise VerifyStepFailed(
            f"the price of {where} is a guess ({offer.price_source})", "allow the price API; see `setup`"
        )
    return f"{where}, {offer.price_source}"
