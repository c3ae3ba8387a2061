"""Where and when a job runs: wait, spot here, spot there, on demand. Pure but for `traces`; standard library only."""

from outlast.policy.decide import decide
from outlast.policy.explain import explain
from outlast.policy.view import Choice, OnDemand, PolicyView, Spot

__all__ = ["Choice", "OnDemand", "PolicyView", "Spot", "decide", "explain"]
