"""`outlast prices` on Google Cloud: the age of the catalogue, or the date of the built-in table."""

from __future__ import annotations

import pytest

from outlast.app.prices import ask
from outlast.clouds.cloud import Range, Requirements
from outlast.clouds.gcp.cloud import GcpCloud


@pytest.mark.full
def test_each_price_reports_whether_it_is_from_the_catalogue_or_built_in(gcp: GcpCloud) -> None:
    answer = ask(gcp, Requirements(cpus=Range(low=4, high=4)), [True, False])
    assert not answer.problem
    assert {offer.spot for offer in answer.offers} == {True, False}
    for offer in answer.offers:
        assert "billing catalogue, fetched" in offer.price_source or "built-in prices of" in offer.price_source
        assert offer.price_at > 0
        assert offer.price_guessed is offer.price_source.startswith("guessed")
