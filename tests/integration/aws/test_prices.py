"""`outlast prices` on EC2: each price reports its source."""

from __future__ import annotations

from outlast.app.prices import ask
from outlast.clouds.aws.cloud import AwsCloud
from outlast.clouds.cloud import Range, Requirements


def test_spot_is_from_the_price_history_and_on_demand_reports_its_source(cloud: AwsCloud) -> None:
    answer = ask(cloud, Requirements(cpus=Range(low=2, high=4)), [True, False])
    assert not answer.problem
    assert {offer.spot for offer in answer.offers} == {True, False}
    for offer in answer.offers:
        assert ("price history" in offer.price_source) is offer.spot
        assert offer.spot or "built-in prices of" in offer.price_source or "Pricing API" in offer.price_source
        assert offer.price_at > 0
